"""Tool calls of models with one of TRL's training templates: by itself TRL parses those of stock ones alone."""

from importlib.resources import files
from typing import Any

from trl.chat_template_utils import add_response_schema


def parse_tool_calls(processing: Any) -> bool:
    """Whether the tokenizer or processor can now parse calls, or could before; its template stays as it is.

    TRL gives its parser to templates whose text is a stock one's. A model saved with TRL's training variant
    writes its calls in the same way, so it gets the same parser. TRL refuses any other template.

    >>> from types import SimpleNamespace
    >>> parse_tool_calls(SimpleNamespace(chat_template="{{ messages }}"))
    False
    """
    tokenizer = getattr(processing, "tokenizer", processing)
    if any(getattr(tokenizer, name, None) is not None for name in ("response_template", "response_schema")):
        return True
    given, folder = processing.chat_template, files("trl") / "chat_templates"
    for file in folder.iterdir():
        stock = folder / file.name.replace("_training.jinja", ".jinja")
        if file.name.endswith("_training.jinja") and file.read_text(encoding="utf-8") == given:
            try:
                processing.chat_template = stock.read_text(encoding="utf-8")
                add_response_schema(processing)
                return True
            except (OSError, ValueError):  # no stock template, or one whose calls TRL cannot parse
                continue
            finally:
                processing.chat_template = given
    return False
