"""The teacher's prompt: what the student was shown, plus the privileged context.

A teacher prompt is only ever scored with. It has a type of its own, and nothing that generates accepts it. The
completion's token ids are appended verbatim later, in ``score``; no text is tokenised a second time. Knows no
model and no tokenizer: it is handed messages and ids.
"""

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

Message = Mapping[str, Any]
"""A chat message: ``role``, ``content``, and whatever else the template reads."""
Prompt = str | Sequence[Message]
"""A prompt before the tokenizer: plain text, or chat messages."""

PRIVILEGED_COLUMNS = ("privileged_context", "solution", "answer", "ground_truth")
"""Where a dataset row may hold the privileged context, in the order in which they are tried."""

SOURCES = ("environment", "row", "sibling", "feedback", "function")
"""Where a privileged context may come from."""
CONTRASTS = ("sibling", "shuffled")
NO_CONTRAST = "none"
"""Wrong contexts that are made from the batch; any other name is a column of the dataset."""

DEFAULT_TEMPLATE = (
    "{prompt}\n\nHere is a reference solution:\n{privileged_context}\n\n"
    "Solve the problem in your own words, step by step."
)
"""How the teacher is shown the privileged context, unless a template is given (ours; the paper's is unknown)."""

DEFAULT_HINT = "Reference solution for the problem below:\n{privileged_context}\n\n"
"""The text whose ids are spliced before the student's prompt, unless a template is given."""


@dataclass(frozen=True, slots=True)
class TeacherPrompt:
    """Token ids that only a scoring pass may read. Not a list: nothing that generates can take it by mistake.

    >>> TeacherPrompt((7, 8)).ids
    (7, 8)
    """

    ids: tuple[int, ...]


def privileged_context(row: Mapping[str, Any], column: str | None = None) -> tuple[str, str] | None:
    """The row's privileged context and the column it came from; None if the row has none.

    The columns are tried in the order of ``PRIVILEGED_COLUMNS``, then verl's ``reward_model.ground_truth``;
    with ``column`` that one only. Text that is empty or blank is no context (``context_text``).

    >>> privileged_context({"prompt": "2+2", "solution": None, "answer": 4})
    ('answer', '4')
    >>> privileged_context({"prompt": "2+2", "answer": " "})
    """
    for name in (column,) if column is not None else PRIVILEGED_COLUMNS:
        text = context_text(row.get(name))
        if text is not None:
            return name, text
    reward_model: Any = row.get("reward_model")
    if column is None and isinstance(reward_model, Mapping):
        ground_truth: Any = reward_model.get("ground_truth")  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        text = context_text(ground_truth)
        if text is not None:
            return "reward_model.ground_truth", text
    return None


def check_sources(sources: Sequence[str], has_function: bool = False) -> None:
    """Raise ``ValueError`` that names a source which is not known, or missing.

    >>> check_sources(["row", "oracle"])
    Traceback (most recent call last):
    ValueError: privileged_sources: 'oracle' is not one of environment, row, sibling, feedback, function
    """
    for source in sources:
        if source not in SOURCES:
            raise ValueError(f"privileged_sources: {source!r} is not one of {', '.join(SOURCES)}")
    if not sources:
        raise ValueError(f"privileged_sources: empty; give one or more of {', '.join(SOURCES)}")
    if "function" in sources and not has_function:
        raise ValueError("privileged_sources: 'function' needs a function; give one as `privileged`")


def source_counts(rows: Sequence[Mapping[str, Any]], column: str | None = None) -> dict[str, int]:
    """How many rows take their privileged context from which column; key ``none`` for rows without.

    >>> source_counts([{"answer": "4"}, {"solution": "2+2=4"}, {"answer": ""}, {"answer": "5"}])
    {'answer': 2, 'none': 1, 'solution': 1}
    """
    pairs = (privileged_context(row, column) for row in rows)
    return dict(sorted(Counter("none" if pair is None else pair[0] for pair in pairs).items()))


def render(prompt: Prompt, context: str, template: str = DEFAULT_TEMPLATE) -> Prompt:
    """The prompt with the template's text in place of its first user message (else its first system message).

    The first, so that every later turn of the rollout is shifted equally. ``{prompt}`` and
    ``{privileged_context}`` stand for the message's own text and the context; braces elsewhere, in the
    template or in either text, are left alone. The prompt handed in is not changed. Raises ``ValueError`` if
    the template lacks a placeholder or no message can take it.

    >>> render([{"role": "user", "content": "2+2"}], "4", "{prompt} (it is {privileged_context})")
    [{'role': 'user', 'content': '2+2 (it is 4)'}]
    """
    check_template(template, ("{prompt}", "{privileged_context}"))
    if isinstance(prompt, str):
        return fill(template, prompt=prompt, privileged_context=context)
    roles = [message.get("role") for message in prompt]
    place = next((roles.index(role) for role in ("user", "system") if role in roles), None)
    if place is None:
        raise ValueError(
            f"prompt: no user or system message to hold the privileged context, only {roles}; add one, or use "
            "teacher_prompt='splice'"
        )
    message = prompt[place]
    content: Any = message.get("content")
    return [
        *prompt[:place],
        {**message, "content": _filled_content(content, context, template)},
        *prompt[place + 1 :],
    ]


def splice(hint_ids: Sequence[int], prompt_ids: Sequence[int]) -> TeacherPrompt:
    """The hint's ids before the verbatim ids of the student's prompt.

    For prompts that exist as ids only (custom rollouts, an agent loop): nothing is rendered again.

    >>> splice([7], [1, 2])
    TeacherPrompt(ids=(7, 1, 2))
    """
    return TeacherPrompt((*hint_ids, *prompt_ids))


def fill(template: str, **values: str) -> str:
    """The template with each ``{name}`` replaced by its value, all at once: a value is never searched.

    >>> fill("{prompt} | {other}", prompt="write {prompt}")
    'write {prompt} | {other}'
    """
    return re.sub(r"\{(" + "|".join(values) + r")\}", lambda match: values[match[1]], template)


def check_template(template: str, placeholders: Sequence[str]) -> None:
    """Raise ``ValueError`` that names the placeholder which the template lacks.

    >>> check_template("{prompt}", ["{privileged_context}"])
    Traceback (most recent call last):
    ValueError: teacher template: '{prompt}' lacks {privileged_context}; add the placeholder
    """
    for placeholder in placeholders:
        if placeholder not in template:
            raise ValueError(f"teacher template: {template!r} lacks {placeholder}; add the placeholder")


def _filled_content(content: Any, context: str, template: str) -> Any:
    if isinstance(content, str):
        return fill(template, prompt=content, privileged_context=context)
    blocks: list[dict[str, Any]] = [dict(block) for block in content or ()]
    for block in blocks:
        if block.get("type") == "text":
            block["text"] = fill(template, prompt=str(block["text"]), privileged_context=context)
            return blocks
    raise ValueError(f"prompt: the message has no text to hold the privileged context, only {content!r}")


def context_text(value: Any) -> str | None:
    """A privileged context as text; None for nothing, for blank text and for NaN, which tables have for nothing.

    A number becomes its digits, a list of messages their contents, any other value its JSON, without the keys
    that hold null: a dataset fills them in where another row has them.

    >>> context_text([{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]), context_text(" ")
    ('a\\nb', None)
    >>> context_text(True), context_text(float("nan")), context_text({"x": 1, "y": None})
    ('true', None, '{"x": 1}')
    """
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        text = str(value) if value == value else ""  # NaN alone is not itself
    else:
        items: list[Any] = [*value] if isinstance(value, list) else []
        if items and all(isinstance(item, Mapping) and "content" in item for item in items):
            text = "\n".join(str(message["content"]) for message in items)
        else:
            given = value is not None and value not in ("", [], {})
            text = json.dumps(_without_null(value), ensure_ascii=False, default=str) if given else ""
    return text if text.strip() else None


def _without_null(value: Any) -> Any:
    if isinstance(value, Mapping):
        pairs = cast(Mapping[str, Any], value).items()
        return {name: _without_null(inner) for name, inner in pairs if inner is not None}
    return [_without_null(inner) for inner in cast(list[Any], value)] if isinstance(value, list) else value
