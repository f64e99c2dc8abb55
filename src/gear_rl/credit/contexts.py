"""What the teacher sees of every rollout: its privileged context, and the prompt that shows it. Scores nothing.

A teacher's prompt has a type of its own, which nothing that generates accepts.
"""

import json
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

from jaxtyping import Bool
from torch import Tensor

from gear_rl.credit.config import (
    DEFAULT_TEMPLATE,
    NO_CONTRAST,
    PRIVILEGED_COLUMNS,
    CreditConfig,
    check_sources,
)
from gear_rl.credit.control_tokens import control_pattern, defuse_text
from gear_rl.credit.prompts import check_untemplated
from gear_rl.engine import Engine, plain_ids
from gear_rl.environments import PRIVILEGED_CONTEXT, is_blocks, texts_of, value_of
from gear_rl.files import without_null
from gear_rl.rollouts import Prompts, RolloutBatch, left_padded, succeeds
from gear_rl.signals.table import needs_context
from gear_rl.tensor.lists import int_list
from gear_rl.tensor.segments import turn_ids
from gear_rl.types import CreditAssigner, Signal

logger = logging.getLogger(__name__)

Prompt = str | Sequence[Mapping[str, Any]]
"""A prompt before the tokenizer: plain text, or chat messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """A finished rollout, from which a privileged context may be made.

    >>> def hint(row, rollout):  # a function for the source "function"
    ...     return f"{rollout.text} is wrong" if rollout.reward == 0.0 else None
    >>> hint({"prompt": "1+1="}, Rollout(completion="3", text="3", reward=0.0, group=0))
    '3 is wrong'
    """

    completion: Prompt
    """As the reward functions see it: text, or messages with the tools' answers."""
    text: str
    """The sampled tokens, decoded; one line per turn."""
    reward: float | None
    """The weighted sum of its rewards; None where every reward function abstained."""
    group: int
    """The number of its prompt; siblings share it."""
    privileged_context: str | None = None
    """The environment's ``privileged_context()`` after the rollout."""
    feedback: str | None = None
    """What a reward function logged with ``log_extra("feedback", ...)``; else the tools' answers."""


PrivilegedFunction = Callable[[Mapping[str, Any], Rollout], str | None]
"""From the dataset row and the rollout to the privileged context, or None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TeacherPrompts:
    """What the teacher sees of each rollout."""

    tried: Sequence[str]
    """The sources, in order; empty if the method reads no context."""
    sources: Sequence[str | None]
    """Where the context came from: a column or a name of ``SOURCES``; None where none is shown."""
    contexts: Sequence[str | None]
    prompts: Sequence[Prompts]
    """The teacher's prompts, and those with the wrong context where there is a contrast."""
    missing_B: Bool[Tensor, " B"]
    """True where there is no context, or no wrong one for the contrast."""
    long_B: Bool[Tensor, " B"]
    """True where one of them is too long to be shown."""


def sources_of(config: CreditConfig, privileged: PrivilegedFunction | None) -> list[str]:
    """The sources to try, in order; a given function that is not listed comes first.

    >>> sources_of(CreditConfig(privileged_sources=["row"]), privileged=lambda row, rollout: row["hint"])
    ['function', 'row']
    """
    sources = list(config.privileged_sources or ())
    return sources if privileged is None or "function" in sources else ["function", *sources]


def prompts_for(
    batch: RolloutBatch,
    method: CreditAssigner,
    signals: Sequence[Signal],
    engine: Engine,
    config: CreditConfig,
    privileged: PrivilegedFunction | None,
) -> TeacherPrompts:
    """The teacher's prompts of a batch; none for a method that reads no context. Every process must call this.

    ``signals`` are those that the method needs.
    """
    mask, reads_context = batch.completions.mask, needs_context(method)
    rendered = reads_context and config.teacher_prompt == "render"
    check_untemplated(batch.prompts, engine.tokenizer, reads_context=rendered)
    missing_B, long_B = mask.new_zeros(len(mask)), mask.new_zeros(len(mask))
    prompts = list[Prompts]()
    if not reads_context:
        nothing = [None] * len(mask)
        return TeacherPrompts(
            tried=(), sources=nothing, contexts=nothing, prompts=(), missing_B=missing_B, long_B=long_B
        )
    sources, contexts, wrong = contexts_of(batch, engine, config, privileged)
    # Only a teacher's signals are contrasted, not a distillation term or an answer's confidence.
    for texts in (contexts, wrong if any(signal.teacher for signal in signals) else None):
        if texts is not None:
            shown, long = teacher_prompts(batch, engine, config, texts)
            prompts.append(shown)
            missing_B |= missing_B.new_tensor([text is None for text in texts])
            long_B |= long_B.new_tensor(long)
    if long_B.any():
        warn_of_long(config.max_privileged_tokens, engine.max_positions)
    sources, contexts = (
        [None if over else value for value, over in zip(values, int_list(long_B), strict=True)]
        for values in (sources, contexts)
    )
    return TeacherPrompts(
        tried=sources_of(config, privileged),
        sources=sources,
        contexts=contexts,
        prompts=prompts,
        missing_B=missing_B,
        long_B=long_B,
    )


def contexts_of(
    batch: RolloutBatch, engine: Engine, config: CreditConfig, privileged: PrivilegedFunction | None
) -> tuple[list[str | None], list[str | None], list[str | None] | None]:
    """The source and the text of every rollout's privileged context; wrong ones too where a contrast is set.

    ``config`` is ``resolved``. Every process must call this. Raises ``ValueError`` for an unknown source.
    """
    sources, contrast = sources_of(config, privileged), cast(str, config.teacher_contrast)
    check_sources(sources, privileged is not None)
    if batch.environments is None:
        sources = [source for source in sources if source != "environment"]
    success = cast(float, config.success_reward)
    reads_siblings = "sibling" in {*sources, contrast}
    reads_rollouts = reads_siblings or {*sources} - {"row", "prompt"}
    local = _rollouts(batch, engine, "environment" in sources) if reads_rollouts else []
    everyone = engine.gather_objects(local) if reads_siblings else local
    first = batch.first if reads_siblings else 0
    pairs = find_contexts(
        batch.rows,
        everyone,
        sources,
        first=first,
        column=config.privileged_column,
        function=privileged,
        success_reward=success,
    )
    names = [pair and pair[0] for pair in pairs]
    texts = [pair and pair[1] for pair in pairs]
    wrong = None
    if contrast == "shuffled":  # a process may hold one group only, whose context is the same in every row
        all_wrong = wrong_contexts([], engine.gather_objects(texts), [], contrast)
        wrong = all_wrong[batch.first : batch.first + len(texts)]
    elif contrast != NO_CONTRAST:
        wrong = wrong_contexts(batch.rows, texts, everyone, contrast, first=first, success_reward=success)
    return names, texts, wrong


def find_contexts(
    rows: Sequence[Mapping[str, Any]],
    everyone: Sequence[Rollout],
    sources: Sequence[str],
    *,
    first: int = 0,
    column: str | None = None,
    function: PrivilegedFunction | None = None,
    success_reward: float = 1.0,
) -> list[tuple[str, str] | None]:
    """For each row the first source that has a context, and the context; None where none has.

    ``everyone`` are the rollouts of all processes, where those of the rows begin at ``first``. A sibling is the
    next rollout of the group, cyclically, whose reward is at least ``success_reward``. Feedback is for failures
    only. That of ``prompt`` is empty: the teacher sees the student's prompt. Raises ``ValueError`` for a function
    that returns no text.

    >>> won = Rollout(completion="4", text="4", reward=1.0, group=0)
    >>> lost = Rollout(completion="5", text="5", reward=0.0, group=0)
    >>> find_contexts([{}, {}], [won, lost], ["row", "sibling"])
    [None, ('sibling', '4')]
    """

    def offered_context(source: str, i: int) -> tuple[str, str] | None:
        text: Any = None
        if source == "row":
            return privileged_context(rows[i], column)
        if source == "prompt":
            return source, ""
        if source == "environment":
            text = everyone[first + i].privileged_context
        elif source == "sibling":
            text = _sibling(everyone, first + i, lambda reward: succeeds(reward, success_reward))
        elif source == "feedback":
            reward = everyone[first + i].reward
            failed = reward is not None and not succeeds(reward, success_reward)
            text = everyone[first + i].feedback if failed else None
        elif function is not None:
            text = function(rows[i], everyone[first + i])
            if text is not None and not isinstance(text, str):
                raise ValueError(
                    f"privileged: the function returned {type(text).__name__}; return text, or None where there "
                    "is nothing to show"
                )
        return (source, text) if text is not None and text.strip() else None

    found: list[tuple[str, str] | None] = [None] * len(rows)
    for source in sources:
        found = [offered_context(source, i) if pair is None else pair for i, pair in enumerate(found)]
    return found


def wrong_contexts(
    rows: Sequence[Mapping[str, Any]],
    contexts: Sequence[str | None],
    everyone: Sequence[Rollout],
    contrast: str,
    *,
    first: int = 0,
    success_reward: float = 1.0,
) -> list[str | None]:
    """For each rollout a wrong context; None where there is none.

    ``"sibling"`` is a failed rollout of the group, ``"shuffled"`` the next context that is another text, any
    other name a column of the row.

    >>> wrong_contexts([{"wrong": "5"}], ["4"], [], "wrong")
    ['5']
    """
    if contrast == "sibling":
        return [
            _sibling(everyone, first + i, lambda r: not succeeds(r, success_reward))
            for i in range(len(contexts))
        ]
    if contrast == "shuffled":
        return [
            next((c for c in (*contexts[i + 1 :], *contexts[:i]) if c is not None and c != own), None)
            for i, own in enumerate(contexts)
        ]
    return [context_text(row.get(contrast)) for row in rows]


def teacher_prompts(
    batch: RolloutBatch, engine: Engine, config: CreditConfig, contexts: Sequence[str | None]
) -> tuple[Prompts, list[bool]]:
    """The teacher's prompt for each rollout, and whether its context was too long to be shown.

    Without a context, or with one that is too long, it is the student's prompt. "splice" puts the context's ids
    before the verbatim ids of the student's prompt.
    """
    student, template = batch.student, config.template
    long = too_long(contexts, engine, config)
    contexts = [None if over else text for text, over in zip(contexts, long, strict=True)]

    def own_ids(b: int) -> tuple[int, ...]:
        return tuple(int_list(student.ids_BP[b][student.attention_BP[b].bool()]))

    if config.teacher_prompt == "splice":
        hints = [fill(template, privileged_context=text) if text else "" for text in contexts]
        prompts = [(*plain_ids(engine.tokenizer, hint), *own_ids(b)) for b, hint in enumerate(hints)]
    else:
        shown = [
            render(prompt, text, template, config.teacher_context_message or "first") if text else prompt
            for prompt, text in zip(batch.prompts, contexts, strict=True)
        ]
        if config.teacher_context_message is None and any(
            sum(message.get("role") == "user" for message in prompt) > 1
            for prompt, text in zip(batch.prompts, contexts, strict=True)
            if text and not isinstance(prompt, str)
        ):
            warn_of_several()
        template_kwargs = cast(Mapping[str, Any] | None, config.teacher_chat_template_kwargs)
        prompts = [tuple(ids) for ids in engine.render(shown, template_kwargs)]
    places = engine.max_positions
    for b, length in enumerate(int_list(batch.completions.attention.sum(-1))):
        if places is not None and contexts[b] and len(prompts[b]) + length > places:
            long[b] = True
            prompts[b] = own_ids(b)
    pad_id = cast(int, engine.tokenizer.pad_token_id)
    return left_padded(prompts, pad_id, student.ids_BP.device), long


def too_long(contexts: Sequence[str | None], engine: Engine, config: CreditConfig) -> list[bool]:
    """Which contexts have more tokens than ``max_privileged_tokens`` or the model's positions."""
    limits = (config.max_privileged_tokens, engine.max_positions)
    limit = min((limit for limit in limits if limit is not None), default=None)
    known = {
        text: len(text.encode("utf-8", "surrogatepass")) > limit  # a token has at least one byte
        and len(plain_ids(engine.tokenizer, text)) > limit
        for text in dict.fromkeys(contexts)
        if text and limit is not None
    }
    return [known.get(text or "", False) for text in contexts]


@lru_cache(maxsize=64)
def warn_of_long(limit: int | None, places: int | None) -> None:
    """Once for each pair of limits; a metric counts every step's."""
    logger.warning(
        "a privileged context has more tokens than the teacher may be shown (max_privileged_tokens %s; positions "
        "of the model, which also hold prompt and completion: %s). Its completions keep their GRPO advantage; "
        "gear/fallback/long_context counts them",
        limit,
        "unknown" if places is None else places,
    )


@lru_cache(maxsize=1)
def warn_of_several() -> None:
    """Once: the message that the context belongs to may be another."""
    logger.warning(
        "a prompt has several user messages, and the teacher reads the privileged context in the first; set "
        "teacher_context_message to last where the problem stands there (few-shot examples, a conversation), or "
        "to first"
    )


def privileged_context(row: Mapping[str, Any], column: str | None = None) -> tuple[str, str] | None:
    """The column of the row's privileged context and the context; None if the row has none.

    Tries ``PRIVILEGED_COLUMNS`` and then verl's ``reward_model.ground_truth``; with ``column`` only that.

    >>> privileged_context({"prompt": "2+2", "solution": None, "answer": 4})
    ('answer', '4')
    >>> privileged_context({"prompt": "2+2", "answer": " "})
    """
    values = {name: row.get(name) for name in (PRIVILEGED_COLUMNS if column is None else (column,))}
    reward_model: Any = row.get("reward_model")
    if column is None and isinstance(reward_model, dict):
        values["reward_model.ground_truth"] = cast(dict[str, Any], reward_model).get("ground_truth")
    texts = ((name, context_text(value)) for name, value in values.items())
    return next(((name, text) for name, text in texts if text is not None), None)


def context_text(value: Any) -> str | None:
    """A privileged context as text; None for a missing value, blank text and NaN.

    A list of messages becomes their texts and tool calls. Any value but a number or text becomes its JSON without
    the keys that hold null: a dataset adds them where another row has them.

    >>> context_text([{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]), context_text(" ")
    ('a\\nb', None)
    >>> context_text(True), context_text(float("nan")), context_text({"x": 1, "y": None})
    ('true', None, '{"x": 1}')
    """
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        text = str(value) if value == value else ""  # NaN alone is not itself
    else:
        items: list[Any] = [*value] if isinstance(value, list) else []
        if items and all(isinstance(item, Mapping) and {"content", "tool_calls"} & {*item} for item in items):
            text = "\n".join(filter(None, map(_message_text, items)))
        else:
            given = value is not None and value not in ("", [], {})
            text = json.dumps(without_null(value), ensure_ascii=False, default=str) if given else ""
    return text if text.strip() else None


def _message_text(message: Mapping[str, Any]) -> str:
    content, calls = message.get("content"), message.get("tool_calls")
    parts: list[Any] = ["".join(texts_of(content)) if is_blocks(content) else content]
    for call in cast(list[Any], calls if isinstance(calls, list) else [calls]):
        given: dict[str, Any] = {**call} if isinstance(call, Mapping) else {}
        parts.append(given.get("function") or call)
    return "\n".join(filter(None, map(context_text, parts)))


def render(prompt: Prompt, context: str, template: str = DEFAULT_TEMPLATE, message: str = "first") -> Prompt:
    """The prompt with the template's text in place of its first user message (else its first system message).

    With ``message="last"`` it is the last such message.
    ``{prompt}`` and ``{privileged_context}`` stand for the message's own text and the context; other braces are
    kept. The given prompt is not changed. Raises ``ValueError`` if no message has a text.

    >>> render([{"role": "user", "content": "2+2"}], "4", "{prompt} (it is {privileged_context})")
    [{'role': 'user', 'content': '2+2 (it is 4)'}]
    """
    if isinstance(prompt, str):
        return fill(template, prompt=prompt, privileged_context=context)
    roles = [message.get("role") for message in prompt]
    role = next((role for role in ("user", "system") if role in roles), None)
    if role is None:
        raise ValueError(
            f"prompt: no user or system message to hold the privileged context, only {roles}; add one, or use "
            "teacher_prompt='splice'"
        )
    place = roles.index(role) if message == "first" else len(roles) - 1 - roles[::-1].index(role)
    content: Any = prompt[place].get("content")
    if isinstance(content, str):
        filled = fill(template, prompt=content, privileged_context=context)
    else:
        filled = [dict(block) for block in content or ()]
        block = next((block for block in filled if block.get("type") == "text"), None)
        if block is None:
            raise ValueError(
                f"prompt: the message has no text to hold the privileged context, only {content!r}"
            )
        block["text"] = fill(template, prompt=str(block["text"]), privileged_context=context)
    return [*prompt[:place], {**prompt[place], "content": filled}, *prompt[place + 1 :]]


def fill(template: str, **values: str) -> str:
    """The template with each ``{name}`` replaced by its value, all at once: a value is never searched.

    >>> fill("{prompt} | {other}", prompt="write {prompt}")
    'write {prompt} | {other}'
    """
    return re.sub(r"\{(" + "|".join(values) + r")\}", lambda match: values[match[1]], template)


def _rollouts(batch: RolloutBatch, engine: Engine, reads_environments: bool) -> list[Rollout]:
    """The batch's rollouts; control tokens in what the model and tools wrote become plain text."""
    feedback, messages = batch.logged.get("feedback"), batch.messages
    # A control token would end the turn in the teacher's prompt.
    control = control_pattern(engine.tokenizer, markup=False)
    environments = batch.environments if reads_environments else None
    rollouts: list[Rollout] = []
    for b, turn_id in enumerate(turn_ids(batch.completions.mask)):
        num_turns = int(turn_id.max()) + 1 if len(turn_id) else 0
        turns = [int_list(batch.completions.ids[b][turn_id == turn]) for turn in range(num_turns)]
        texts = [engine.tokenizer.decode(ids, skip_special_tokens=True).strip() for ids in turns]
        given = _tool_answers(messages[b]) if feedback is None else context_text(feedback[b])
        rollouts.append(
            Rollout(
                completion=messages[b],
                text=defuse_text("\n".join(text for text in texts if text), control),
                reward=batch.rewards[b],
                group=batch.group[b],
                privileged_context=_environments_context(environments[b]) if environments else None,
                feedback=given and defuse_text(given, control),
            )
        )
    return rollouts


def _environments_context(environment: Any) -> str | None:
    """The environment's privileged context; None, with a warning, if its method fails."""
    try:
        return context_text(value_of(environment, PRIVILEGED_CONTEXT))
    except Exception as error:
        name = type(environment).__name__
        logger.warning("%s.privileged_context() failed: %s: %s", name, type(error).__name__, error)
        return None


def _tool_answers(completion: Any) -> str | None:
    if isinstance(completion, str):
        return None
    messages = cast(Sequence[Mapping[str, Any]], completion)
    return context_text([message for message in messages if message.get("role") == "tool"])


def _sibling(everyone: Sequence[Rollout], place: int, wanted: Callable[[float], bool]) -> str | None:
    """The text of the next rollout of the same group, cyclically, whose reward is as wanted."""
    group = everyone[place].group
    for step in range(1, len(everyone)):
        other = everyone[(place + step) % len(everyone)]
        if other.group == group and other.reward is not None and wanted(other.reward) and other.text.strip():
            return other.text
    return None
