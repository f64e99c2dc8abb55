"""Tool calls of models with one of TRL's training templates: by itself TRL parses those of stock ones alone."""

from importlib.resources import files
from typing import Any

from trl.chat_template_utils import add_response_schema


def parse_tool_calls(processing: Any) -> bool:
    """Whether the tokenizer or processor can now parse calls, or could before; its template stays as it is.

    TRL knows a chat template by its text, and gives its parser of calls to the stock ones. A model saved with
    TRL's training variant of such a template writes its calls in the same way, so it gets the same parser. False
    for any other template: TRL looks at it next, and its error says what to do.

    >>> from types import SimpleNamespace
    >>> template = (files("trl") / "chat_templates" / "qwen3_training.jinja").read_text(encoding="utf-8")
    >>> tokenizer = SimpleNamespace(chat_template=template)
    >>> parse_tool_calls(tokenizer), tokenizer.chat_template == template
    (True, True)
    >>> parse_tool_calls(SimpleNamespace(chat_template="{{ messages }}"))
    False
    """
    tokenizer = getattr(processing, "tokenizer", processing)
    if any(getattr(tokenizer, name, None) is not None for name in ("response_template", "response_schema")):
        return True
    given = processing.chat_template
    stock = _stock_template(given)
    if stock is None:
        return False
    processing.chat_template = stock
    try:
        add_response_schema(processing)
    except ValueError:  # a template of TRL's whose calls it cannot parse
        return False
    finally:
        processing.chat_template = given
    return True


def _stock_template(template: str | None) -> str | None:
    """The stock template of which TRL ships this as the training variant; None where it is none of them."""
    folder = files("trl") / "chat_templates"
    for file in sorted(folder.iterdir(), key=lambda entry: entry.name):
        stock = folder / file.name.replace("_training.jinja", ".jinja")
        if file.name.endswith("_training.jinja") and file.read_text(encoding="utf-8") == template:
            return stock.read_text(encoding="utf-8") if stock.is_file() else None
    return None
