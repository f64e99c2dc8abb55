"""Prompts that a chat template refuses, and prompts that went through it already. Knows no trainer."""

import re
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

from gear_rl.credit.control_tokens import control_pattern
from gear_rl.environments import texts_of

_CONTENT = "THE CONTENT OF A MESSAGE"
_TOOL_FAULTS = ("DocstringParsingException", "TypeHintParsingException")
"""What transformers raises where it cannot show a tool to the template."""


@contextmanager
def naming_refused(
    prompts: Sequence[Any], render: Callable[[Any], object], name: str = "prompt"
) -> Generator[None]:
    """Raise ``ValueError`` that names the prompt which the chat template refuses, where it refuses one.

    ``render`` shows one prompt to the template; it is called after an error only.
    """
    try:
        yield
    except Exception:  # a chat template may raise what it likes
        for number, prompt in enumerate(prompts, start=1):
            try:
                render(prompt)
            except Exception as error:
                rule = str(error).partition("\n")[0]
                if type(error).__name__ in _TOOL_FAULTS:
                    raise ValueError(
                        f"tools: {rule.rstrip('.!')}. A tool, as every public method of an environment is, needs "
                        "types and a docstring with its arguments; begin the name of another method with _"
                    ) from None
                raise ValueError(
                    f"prompt: the model's chat template refuses {name} {number}, {_excerpt(prompt)} ({rule}); "
                    "give messages that it takes: the system's text before the user's where it has no system "
                    "role, neighbours of one role joined where roles must alternate"
                ) from None
        raise


def check_untemplated(
    prompts: Sequence[Any], tokenizer: Any, *, reads_context: bool, name: str = "prompt"
) -> None:
    """Raise ``ValueError`` that names the first prompt whose text went through the chat template already.

    Such a text begins with a control token with which the template begins a user's message, or ends as the
    template ends one. A prompt of plain text may be such a text, unless the teacher's context would come to stand
    behind it (``reads_context``), or the tokenizer would put its first token before it a second time.
    """
    templated = _template_ends(tokenizer)
    begin = getattr(tokenizer, "bos_token", None)
    for number, prompt in enumerate(prompts, start=1):
        if isinstance(prompt, str):
            texts = [prompt] if reads_context or (begin and prompt.startswith(begin)) else []
        else:
            contents = (message.get("content") for message in prompt if message.get("role") == "user")
            texts = [text for content in contents for text in texts_of(content)]
        if templated is not None and any(map(templated.search, texts)):
            raise ValueError(
                f"prompt: {name} {number}, {_excerpt(prompt)}, went through the chat template already; give its "
                "messages, each with role and content, in its place"
            )


def _template_ends(tokenizer: Any) -> re.Pattern[str] | None:
    """What only a text that went through the tokenizer's chat template begins or ends with; None if unknown."""
    if not getattr(tokenizer, "chat_template", None):
        return None
    try:
        shown: str = tokenizer.apply_chat_template(
            [{"role": "user", "content": _CONTENT}], tokenize=False, add_generation_prompt=True
        )
    except Exception:  # a template that takes no user message alone
        return None
    before, _, after = shown.rpartition(_CONTENT)
    control = control_pattern(tokenizer)
    begins = {re.escape(token) for token in control.findall(before)} if control else set[str]()
    ends = [rf"{re.escape(after.strip())}\s*\Z"] if before and after.strip() else []
    return re.compile("|".join([*(rf"\A\s*{token}" for token in begins), *ends])) if begins or ends else None


def _excerpt(prompt: Any) -> str:
    if isinstance(prompt, str):
        return f"{prompt[:60]!r}"
    said = next((text for message in prompt for text in texts_of(message.get("content"))), "")
    return f"{', '.join(str(message.get('role')) for message in prompt)}: {said[:60]!r}"
