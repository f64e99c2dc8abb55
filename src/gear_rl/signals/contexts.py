"""Where a teacher's privileged context comes from, also where no ground truth was written down.

A row may hold it, an environment may know it, a successful sibling rollout of the same group may serve as one, or
the environment's own feedback, or a function of the user's. The sources are tried in order, rollout by rollout. A
contrast is a second, wrong context: what both share (the style of a hint) cancels. Knows no engine.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor

from gear_rl.signals.privileged import Message
from gear_rl.signals.privileged import privileged_context as context_of_row
from gear_rl.tensor.segments import segment_starts, turn_ids
from gear_rl.types import TokenSignals, signals_where

SOURCES = ("environment", "row", "sibling", "feedback", "function")
"""Where a privileged context may come from."""
CONTRASTS = ("sibling", "shuffled")
NO_CONTRAST = "none"
"""Wrong contexts that are made from the batch; any other name is a column of the dataset."""
_DIVERGENCES = signals_where(lambda signal: signal.student and signal.teacher)


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

    ``everyone`` holds the rollouts of all processes in order, ``first`` says where this process's begin. A
    sibling is another rollout of the group whose reward is at least ``success_reward``: the first one after the
    rollout itself, going round, so that not all copy the same. Feedback is offered to rollouts that failed only:
    a success has nothing to learn from it. Raises ``ValueError`` for an unknown source and for a function that
    returns something else than text or None.

    >>> won = Rollout(completion="4", text="4", reward=1.0, group=0)
    >>> lost = Rollout(completion="5", text="5", reward=0.0, group=0)
    >>> find_contexts([{}, {}], [won, lost], [won, lost], ["row", "sibling"])
    [None, ('sibling', '4')]
    """
    check_sources(sources, function is not None)
    contexts: list[tuple[str, str] | None] = []
    for i, (row, rollout) in enumerate(zip(rows, rollouts, strict=True)):
        context: tuple[str, str] | None = None
        for source in sources:
            if source == "row":
                context = context_of_row(row, column)
            else:
                text: Any = None
                if source == "environment":
                    text = rollout.privileged_context
                elif source == "sibling":
                    text = _sibling(everyone, first + i, lambda r: r >= success_reward)
                elif source == "feedback":
                    failed = rollout.reward is not None and rollout.reward < success_reward
                    text = rollout.feedback if failed else None
                elif function is not None:
                    text = function(row, rollout)
                    if text is not None and not isinstance(text, str):
                        raise ValueError(
                            f"privileged: the function returned {type(text).__name__}; return text, or None "
                            "where there is nothing to show"
                        )
                context = (source, text) if text is not None and text.strip() else None
            if context is not None:
                break
        contexts.append(context)
    return contexts


def wrong_contexts(
    rows: Sequence[Mapping[str, Any]],
    contexts: Sequence[str | None],
    everyone: Sequence[Rollout],
    contrast: str,
    *,
    first: int = 0,
    success_reward: float = 1.0,
) -> list[str | None]:
    """For each rollout a context that is wrong; None where there is none to be had.

    ``"sibling"`` is another rollout of the group that failed, ``"shuffled"`` the context of the next group whose
    context is another text, any other name a column of the row.

    >>> [row] = wrong_contexts([{"wrong": "5"}], ["4"], [], "wrong")
    >>> row
    '5'
    """
    if contrast == "sibling":
        return [_sibling(everyone, first + i, lambda r: r < success_reward) for i in range(len(contexts))]
    if contrast == "shuffled":
        turned = [
            next((c for c in (*contexts[i + 1 :], *contexts[:i]) if c is not None and c != own), None)
            for i, own in enumerate(contexts)
        ]
        return turned
    pairs = [context_of_row(row, contrast) for row in rows]
    return [None if pair is None else pair[1] for pair in pairs]


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


def contrasted(right: TokenSignals, wrong: TokenSignals) -> TokenSignals:
    """The signals of the right context less those of the wrong one; what both hints cause alike cancels.

    A divergence, of whatever kind, is the difference of the two, not below 0. The teacher's log-prob is the
    student's plus the difference of the two teachers', so that the log-ratio becomes log T+ - log T- (CEPO,
    arXiv:2605.19436; RLCSD, arXiv:2606.11709, with one wrong hint); it needs ``student_logprob``. The teacher's
    entropy stays that of the right context: the difference of two is the entropy of nothing.

    >>> mask = torch.tensor([[True, True]])
    >>> right = TokenSignals(mask=mask, divergence=torch.tensor([[2.0, 0.5]]))
    >>> contrasted(right, TokenSignals(mask=mask, divergence=torch.tensor([[0.5, 1.0]]))).divergence
    tensor([[1.5000, 0.0000]])
    """
    changes: dict[str, Any] = {}
    for name, value in _divergences(right):
        changes[name] = (value - wrong.get(name)).clamp_min(0.0)
    if right.teacher_logprob is not None:
        gap = right.teacher_logprob - wrong.get("teacher_logprob")
        changes["teacher_logprob"] = torch.where(right.mask, right.get("student_logprob") + gap, 0.0)
    return replace(right, **changes)


def skipping_first(signals: TokenSignals, num_tokens: int) -> TokenSignals:
    """The same signals, with the teacher agreeing with the student on the first tokens of every turn.

    There the teacher often departs for the sake of form alone (a thinking block opens or does not). A turn that
    is shorter is skipped whole. Every kind of divergence is 0 there; the teacher's log-prob is the student's and
    needs ``student_logprob``. The teacher's entropy stays: it says where a segment may end, and with no
    divergence none is open there.

    >>> mask = torch.tensor([[True, True, False, True]])
    >>> skipping_first(TokenSignals(mask=mask, divergence=torch.tensor([[3.0, 1.0, 0.0, 2.0]])), 1).divergence
    tensor([[0., 1., 0., 0.]])
    """
    if num_tokens == 0:
        return signals
    turn_id = turn_ids(signals.mask) if signals.turn_id is None else signals.turn_id
    column = torch.arange(turn_id.shape[1], device=turn_id.device).expand(turn_id.shape)
    since = column - torch.where(segment_starts(turn_id), column, 0).cummax(-1).values
    skipped = signals.mask & (since < num_tokens)
    changes: dict[str, Any] = {}
    for name, value in _divergences(signals):
        changes[name] = value.masked_fill(skipped, 0.0)
    if signals.teacher_logprob is not None:
        own = signals.get("student_logprob")
        changes["teacher_logprob"] = torch.where(skipped, own, signals.teacher_logprob)
    return replace(signals, **changes)


def _divergences(signals: TokenSignals) -> list[tuple[str, Tensor]]:
    values = [(name, cast(Tensor | None, getattr(signals, name))) for name in _DIVERGENCES]
    return [(name, value) for name, value in values if value is not None]


def _sibling(everyone: Sequence[Rollout], place: int, wanted: Callable[[float], bool]) -> str | None:
    """The text of the next rollout of the same group, going round, whose reward is as wanted."""
    group = everyone[place].group
    for step in range(1, len(everyone)):
        other = everyone[(place + step) % len(everyone)]
        if other.group == group and other.reward is not None and wanted(other.reward) and other.text.strip():
            return other.text
    return None
