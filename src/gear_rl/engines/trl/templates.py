"""Chat templates: the one that a setting names, one without tools, and one that drops earlier thinking."""

import logging
from collections.abc import Callable, Mapping, Sequence, Sized
from importlib.resources import files
from pathlib import Path
from typing import Any, cast

from trl.chat_template_utils import add_response_schema, supports_tool_calling

from gear_rl.engines.trl.rollouts import parse_tool_calls
from gear_rl.environments import texts_of
from gear_rl.errors import did_you_mean

logger = logging.getLogger(__name__)

THOUGHT = "the thought of an earlier turn"
CALL = {"type": "function", "function": {"name": "lookup", "arguments": {"key": "a"}}}


def read_template(path: str) -> str:
    """The text of the chat template at ``path``: a file, a folder with one, or the name of one of TRL's.

    >>> "<tool_call>" in read_template("qwen3_instruct_2507")
    True
    >>> read_template("qwen4")
    Traceback (most recent call last):
    ValueError: chat_template_path: 'qwen4' is no file, no folder with a chat_template.jinja and none of TRL's
    templates; did you mean qwen3 ...?
    """
    file, shipped = Path(path), files("trl") / "chat_templates"
    for one in (file, file / "chat_template.jinja", shipped / f"{path}.jinja"):
        if one.is_file():
            return one.read_text(encoding="utf-8")
    names = sorted(
        one.name.removesuffix(".jinja") for one in shipped.iterdir() if one.name.endswith(".jinja")
    )
    raise ValueError(
        f"chat_template_path: {path!r} is no file, no folder with a chat_template.jinja and none of TRL's "
        f"templates; {did_you_mean(path, [name for name in names if not name.endswith('_training')])}"
    )


def prepare_processing(
    model: Any, processing: Any, path: str | None, *, has_tools: bool, loading: Mapping[str, Any] = {}
) -> Any:
    """The tokenizer or processor with the chat template of the setting; None for the one that TRL loads.

    ``loading`` are TRL's other arguments for it. ``ValueError`` for a template that no rollout with tools can
    use. Runs before a model is loaded.
    """
    if path is None and not has_tools:
        return processing
    template = None if path is None else read_template(path)
    if processing is None:
        from transformers import AutoProcessor

        name = model if isinstance(model, str) else model.config._name_or_path
        try:
            sides = {"truncation_side": "left", "padding_side": "left"}
            processing = AutoProcessor.from_pretrained(name, **sides, **loading)
        except (OSError, ValueError):
            if template is None:
                return None  # the same error comes from TRL, which knows more arguments
            raise
    if template is not None:
        processing.chat_template = template
    if has_tools:
        _check_tools(processing)
    return processing


def check_template(rows: Any, processing: Any) -> None:
    """``ValueError`` for prompts that are messages where no chat template writes them."""
    if getattr(processing, "chat_template", None) or not isinstance(rows, Sized) or not len(rows):
        return
    if not isinstance(cast(Any, rows)[0]["prompt"], str):
        raise ValueError(
            "chat_template_path: the prompts are messages, and the model's tokenizer has no chat template, as "
            "that of a base model; name one (a file, or one of TRL's such as qwen3_instruct_2507), or give text "
            "prompts (chat: false)"
        )


def _check_tools(processing: Any) -> None:
    fix = (
        "set chat_template_path to one that does, such as qwen3_instruct_2507 (TRL's, for models of the ChatML "
        "form: SmolLM2, Qwen) or a file of your own"
    )
    if not supports_tool_calling(processing):
        raise ValueError(
            f"chat_template_path: the model's chat template shows no tool calls and answers; {fix}"
        )
    if not parse_tool_calls(processing):
        try:
            add_response_schema(processing)
        except ValueError:
            raise ValueError(
                "chat_template_path: TRL cannot read tool calls in the form of the model's chat template; "
                f"{fix}, or set tokenizer.response_template"
            ) from None


def dropped_thinking(render: Callable[[list[dict[str, Any]]], str]) -> set[str]:
    """Which messages make a chat template leave out the thinking of the assistant's turn before: "user", "tool".

    >>> sorted(dropped_thinking(lambda messages: messages[-1]["content"]))
    ['tool', 'user']
    >>> sorted(dropped_thinking(str))
    []
    """
    said = f"<think>\n{THOUGHT}\n</think>\n\nIt is a."
    asked = {"role": "user", "content": "Which one?"}
    ends = {
        "user": ({"role": "assistant", "content": said}, {"role": "user", "content": "And now?"}),
        "tool": (
            {"role": "assistant", "content": said, "tool_calls": [CALL]},
            {"role": "tool", "name": "lookup", "content": "a"},
        ),
    }
    dropped = set[str]()
    for role, (turn, after) in ends.items():
        try:
            if THOUGHT not in render([asked, turn, after]):
                dropped.add(role)
        except Exception:  # a template that has no such role
            continue
    return dropped


def warn_of_dropped_thinking(
    render: Callable[[list[dict[str, Any]]], str], prompts: Sequence[Any], *, has_tools: bool
) -> None:
    """Say where the template shows an earlier turn in another form than it was sampled in."""
    dropped = dropped_thinking(render)
    thinks = any(
        "</think>" in text
        for prompt in prompts
        if not isinstance(prompt, str)
        for message in prompt
        if isinstance(message, Mapping) and message.get("role") == "assistant"
        for text in texts_of(message.get("content"))
    )
    if thinks and "user" in dropped:
        logger.warning(
            "prompt: the chat template leaves out the thinking of earlier turns (<think>), so neither the "
            "student nor the teacher reads that of the prompts' assistant messages"
        )
    if has_tools and "tool" in dropped:
        logger.warning(
            "chat_template: it leaves out the thinking (<think>) of the turns before a tool's answer, but a "
            "rollout keeps its tokens as they were sampled, and so does its credit; served through the template, "
            "the model will not see its earlier thinking"
        )
