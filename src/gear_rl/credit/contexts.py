"""What the teacher sees of every rollout of a batch: its privileged context, and the prompt that shows it.

A row may hold the context, an environment may know it, a successful sibling may serve as one, or the
environment's feedback, or a function of the user's. Scores nothing.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

from gear_rl.credit.config import CreditConfig
from gear_rl.environments import PRIVILEGED_CONTEXT, value_of
from gear_rl.signals.batch import Prompts, RolloutBatch, left_padded
from gear_rl.signals.control_tokens import control_pattern, defused
from gear_rl.signals.engine import Engine, plain_ids
from gear_rl.signals.privileged import (
    NO_CONTRAST,
    SOURCES,
    Message,
    TeacherPrompt,
    check_sources,
    context_text,
    fill,
    privileged_context,
    render,
    splice,
)
from gear_rl.signals.signal import signals_of
from gear_rl.tensor.lists import int_list
from gear_rl.tensor.segments import turn_ids
from gear_rl.traits import distillation_of
from gear_rl.types import CreditAssigner

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """What a rollout left behind; a privileged context may be made from it after the fact.

    >>> def hint(row, rollout):  # a function for the source "function"
    ...     return f"{rollout.text} is wrong" if rollout.reward == 0.0 else None
    >>> hint({"prompt": "1+1="}, Rollout(completion="3", text="3", reward=0.0, group=0))
    '3 is wrong'
    """

    completion: str | Sequence[Message]
    """As the reward functions see it: text, or messages with the tools' answers."""
    text: str
    """The tokens that the model sampled, decoded; one line per turn."""
    reward: float | None
    """The weighted sum of its rewards; None where every reward function abstained."""
    group: int
    """Which prompt it answers; siblings share the number."""
    privileged_context: str | None = None
    """What the environment's ``privileged_context()`` said after the rollout."""
    feedback: str | None = None
    """What a reward function logged with ``log_extra("feedback", ...)``; else what the tools answered."""


PrivilegedFunction = Callable[[Mapping[str, Any], Rollout], str | None]
"""A user's source: the dataset row and the rollout in, the privileged context or None out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contexts:
    """The privileged context of each rollout."""

    sources: Sequence[str | None]
    """Where it came from (a column, or a name of ``SOURCES``); None where there is none."""
    texts: Sequence[str | None]
    wrong: Sequence[str | None] | None = None
    """Wrong contexts, where a contrast is set."""


def needs_context(method: CreditAssigner) -> bool:
    """Whether the method reads a privileged context: for a teacher's signals, a distillation or an answer.

    >>> from gear_rl.methods import METHODS
    >>> [name for name in ("uniform", "gear", "opsd", "igpo") if needs_context(METHODS[name]())]
    ['gear', 'opsd', 'igpo']
    """
    return (
        any(signal.teacher or signal.context for signal in signals_of(method.needs))
        or distillation_of(method) is not None
    )


def sources_of(config: CreditConfig, privileged: PrivilegedFunction | None) -> list[str]:
    """The sources to try, in order; a function that was given and is not listed is tried first.

    >>> sources_of(CreditConfig(privileged_sources=["row"]), privileged=lambda row, rollout: row["hint"])
    ['function', 'row']
    """
    sources = list(config.privileged_sources or ())
    return sources if privileged is None or "function" in sources else ["function", *sources]


def contexts_of(
    batch: RolloutBatch, engine: Engine, config: CreditConfig, privileged: PrivilegedFunction | None
) -> Contexts:
    """The privileged context of every rollout, and a wrong one where a contrast is set.

    ``config`` is ``resolved``. Every process must call this: siblings may be on another one.
    """
    sources, contrast = sources_of(config, privileged), cast(str, config.teacher_contrast)
    success = cast(float, config.success_reward)
    local = _rollouts(batch, engine, "environment" in sources)
    among = "sibling" in {*sources, contrast}
    everyone = engine.gather_objects(local) if among else local
    first = batch.first if among else 0
    pairs = find_contexts(
        batch.rows,
        local,
        everyone,
        sources,
        first=first,
        column=config.privileged_column,
        function=privileged,
        success_reward=success,
    )
    names = [None if pair is None else pair[0] for pair in pairs]
    texts = [None if pair is None else pair[1] for pair in pairs]
    if contrast == NO_CONTRAST:
        return Contexts(sources=names, texts=texts)
    if contrast == "shuffled":  # a process may hold one group only, whose context is the same in every row
        all_wrong = wrong_contexts([], engine.gather_objects(texts), [], contrast)
        wrong = all_wrong[batch.first : batch.first + len(texts)]
    else:
        wrong = wrong_contexts(batch.rows, texts, everyone, contrast, first=first, success_reward=success)
    return Contexts(sources=names, texts=texts, wrong=wrong)


def find_contexts(
    rows: Sequence[Mapping[str, Any]],
    rollouts: Sequence[Rollout],
    everyone: Sequence[Rollout],
    sources: Sequence[str],
    *,
    first: int = 0,
    column: str | None = None,
    function: PrivilegedFunction | None = None,
    success_reward: float = 1.0,
) -> list[tuple[str, str] | None]:
    """For each rollout the first source that has a context, and the context; None where none has.

    ``everyone`` holds the rollouts of all processes, ``first`` says where this process's begin. A sibling is the
    next rollout of the group, going round, whose reward is at least ``success_reward``. Feedback is offered to
    failures only. Raises ``ValueError`` for an unknown source and for a function that returns no text.

    >>> won = Rollout(completion="4", text="4", reward=1.0, group=0)
    >>> lost = Rollout(completion="5", text="5", reward=0.0, group=0)
    >>> find_contexts([{}, {}], [won, lost], [won, lost], ["row", "sibling"])
    [None, ('sibling', '4')]
    """
    check_sources(sources, function is not None)

    def offered(source: str, i: int) -> tuple[str, str] | None:
        rollout = rollouts[i]
        if source == "row":
            return privileged_context(rows[i], column)
        text: Any = None
        if source == "environment":
            text = rollout.privileged_context
        elif source == "sibling":
            text = _sibling(everyone, first + i, lambda reward: reward >= success_reward)
        elif source == "feedback":
            failed = rollout.reward is not None and rollout.reward < success_reward
            text = rollout.feedback if failed else None
        elif function is not None:
            text = function(rows[i], rollout)
            if text is not None and not isinstance(text, str):
                raise ValueError(
                    f"privileged: the function returned {type(text).__name__}; return text, or None where there "
                    "is nothing to show"
                )
        return (source, text) if text is not None and text.strip() else None

    found: list[tuple[str, str] | None] = []
    for i in range(len(rollouts)):
        offers = (offered(source, i) for source in sources)
        found.append(next((offer for offer in offers if offer is not None), None))
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
    """For each rollout a context that is wrong; None where there is none.

    ``"sibling"`` is another rollout of the group that failed, ``"shuffled"`` the context of the next group whose
    context is another text, any other name a column of the row.

    >>> wrong_contexts([{"wrong": "5"}], ["4"], [], "wrong")
    ['5']
    """
    if contrast == "sibling":
        return [_sibling(everyone, first + i, lambda r: r < success_reward) for i in range(len(contexts))]
    if contrast == "shuffled":
        return [
            next((c for c in (*contexts[i + 1 :], *contexts[:i]) if c is not None and c != own), None)
            for i, own in enumerate(contexts)
        ]
    pairs = [privileged_context(row, contrast) for row in rows]
    return [None if pair is None else pair[1] for pair in pairs]


def teacher_prompts(
    batch: RolloutBatch, engine: Engine, config: CreditConfig, contexts: Sequence[str | None]
) -> tuple[Prompts, list[bool]]:
    """What the teacher is shown, one prompt per rollout; and whether its context was too long to be shown.

    A rollout without context, or with one that is too long, is shown the student's prompt.
    """
    student = batch.student
    long = too_long(contexts, engine, config)
    contexts = [None if over else text for text, over in zip(contexts, long, strict=True)]

    def own_ids(b: int) -> list[int]:
        return int_list(student.ids_BP[b][student.attention_BP[b].bool()])

    if config.teacher_prompt == "splice":
        hints = [fill(config.template, privileged_context=text) if text else "" for text in contexts]
        prompts = [splice(plain_ids(engine.tokenizer, hint), own_ids(b)) for b, hint in enumerate(hints)]
    else:
        shown = [
            render(prompt, text, config.template) if text else prompt
            for prompt, text in zip(batch.prompts, contexts, strict=True)
        ]
        template_kwargs = cast(Mapping[str, Any] | None, config.teacher_chat_template_kwargs)
        prompts = [TeacherPrompt(tuple(ids)) for ids in engine.render(shown, template_kwargs)]
    places = engine.max_positions
    for b, length in enumerate(int_list(batch.completions.attention.sum(-1))):
        if places is not None and contexts[b] and len(prompts[b].ids) + length > places:
            long[b] = True
            prompts[b] = TeacherPrompt(tuple(own_ids(b)))
    pad_id = cast(int, engine.tokenizer.pad_token_id)
    return left_padded(prompts, pad_id=pad_id, device=student.ids_BP.device), long


def too_long(contexts: Sequence[str | None], engine: Engine, config: CreditConfig) -> list[bool]:
    """Which contexts have more tokens than ``max_privileged_tokens`` or the model's positions."""
    limits = (config.max_privileged_tokens, engine.max_positions)
    limit = min((limit for limit in limits if limit is not None), default=None)
    known: dict[str, bool] = {}
    for text in contexts:
        if text and limit is not None and text not in known:
            # No token is shorter than a byte; and a megabyte's beginning alone shows that it is too long.
            known[text] = len(text.encode("utf-8", "surrogatepass")) > limit and (
                (len(text) > 8 * limit and len(plain_ids(engine.tokenizer, text[: 8 * limit])) > limit)
                or len(plain_ids(engine.tokenizer, text)) > limit
            )
    return [known.get(text or "", False) for text in contexts]


@lru_cache(maxsize=64)
def warn_of_long(limit: int | None, places: int | None) -> None:
    """Once for each pair of limits: later steps would only repeat it, and a metric counts."""
    logger.warning(
        "a privileged context has more tokens than the teacher may be shown (max_privileged_tokens %s; positions "
        "of the model, which also hold prompt and completion: %s). Its completions keep their GRPO advantage; "
        "gear/fallback/long_context counts them",
        "None" if limit is None else limit,
        "unknown" if places is None else places,
    )


def source_metrics(sources: Sequence[str | None], names: Sequence[str], engine: Engine) -> dict[str, float]:
    """How many contexts of all processes came from each of the named sources."""
    everywhere = engine.gather_objects(list(sources))
    # Whatever is no source by name is the column of a row.
    kinds = [name if name in SOURCES or name is None else "row" for name in everywhere]
    return {f"gear/context/{name}": float(kinds.count(name)) for name in names}


def _rollouts(batch: RolloutBatch, engine: Engine, reads_environments: bool) -> list[Rollout]:
    """The batch's rollouts, with control tokens in what the model and tools wrote turned into plain text."""
    feedback, messages = batch.feedback, batch.messages
    if feedback is not None and len(feedback) != len(messages):
        raise ValueError(
            f'log_extra("feedback", ...): {len(feedback)} values for {len(messages)} completions; log one for '
            "each, None where there is nothing to say"
        )
    # What looks like an end of turn must not end one in the teacher's prompt.
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
                text=defused("\n".join(text for text in texts if text), control),
                reward=batch.rewards[b],
                group=batch.group[b],
                privileged_context=_environments_context(environments[b]) if environments else None,
                feedback=given and defused(given, control),
            )
        )
    return rollouts


def _environments_context(environment: Any) -> str | None:
    """What the environment lets the teacher see; one that fails is reported, and the run goes on."""
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
    answers = [str(message.get("content") or "") for message in messages if message.get("role") == "tool"]
    return "\n".join(answers) or None


def _sibling(everyone: Sequence[Rollout], place: int, wanted: Callable[[float], bool]) -> str | None:
    """The text of the next rollout of the same group, going round, whose reward is as wanted."""
    group = everyone[place].group
    for step in range(1, len(everyone)):
        other = everyone[(place + step) % len(everyone)]
        if other.group == group and other.reward is not None and wanted(other.reward) and other.text.strip():
            return other.text
    return None
