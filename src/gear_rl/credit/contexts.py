"""The privileged context of every rollout: which source has one, as text. Shows and scores nothing."""

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from gear_rl.credit.control_tokens import control_pattern, defuse_text
from gear_rl.credit.credit_config import (
    NO_CONTRAST,
    PRIVILEGED_COLUMNS,
    CreditConfig,
    check_sources,
)
from gear_rl.engine import Engine
from gear_rl.environments import PRIVILEGED_CONTEXT, is_blocks, texts_of, value_of
from gear_rl.files import without_null
from gear_rl.rollouts import RolloutBatch, succeeds
from gear_rl.tensor.lists import int_list
from gear_rl.tensor.segments import turn_ids

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


def sources_of(config: CreditConfig, privileged: PrivilegedFunction | None) -> list[str]:
    """The sources to try, in order; a given function that is not listed comes first.

    >>> sources_of(CreditConfig(privileged_sources=["row"]), privileged=lambda row, rollout: row["hint"])
    ['function', 'row']
    """
    sources = list(config.privileged_sources or ())
    return sources if privileged is None or "function" in sources else ["function", *sources]


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
        all_wrong = shuffled_contexts(engine.gather_objects([*zip(texts, batch.group, strict=True)]))
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

    ``"sibling"`` is a failed rollout of the group, any other name a column of the row.

    >>> wrong_contexts([{"wrong": "5"}], ["4"], [], "wrong")
    ['5']
    """
    if contrast == "sibling":
        return [
            _sibling(everyone, first + i, lambda r: not succeeds(r, success_reward))
            for i in range(len(contexts))
        ]
    return [context_text(row.get(contrast)) for row in rows]


def shuffled_contexts(contexts: Sequence[tuple[str | None, int]]) -> list[str | None]:
    """For each context, with the number of its group, the next one of another group that is another text.

    >>> shuffled_contexts([("4", 0), ("2 + 2 = 4", 0), ("9", 1)])
    ['9', '9', '4']
    """
    return [
        next((c for c, g in (*contexts[i + 1 :], *contexts[:i]) if c not in (None, own) and g != group), None)
        for i, (own, group) in enumerate(contexts)
    ]


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
