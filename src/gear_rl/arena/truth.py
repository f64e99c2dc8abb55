"""What a task that knows the truth says of a completion's tokens. Knows no task, no model and no method."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """The decisions among a completion's tokens, and what keeps the way to them open; one entry per token.

    Where decisions do not depend on each other, the true advantage of a token is exact. With the policy's
    probability p of `right_id` in its place, a decision of a reward that is the share of right ones is worth
    (right - p) / `num_decisions`. Where all must be right, that is (right - p) times the probability that every
    other decision is right, which is 0 after a wrong one. A token that keeps the form is worth (right - p) times
    what the decisions that would be `lost` without it are expected to bring. Every other token is worth nothing.
    """

    decision: tuple[int, ...]
    """Which of the answer's decisions the token takes, from 0; -1 where it takes none."""
    right: tuple[bool, ...]
    """Whether it is `right_id`, or, of a decision in several tokens, part of a right one."""
    right_id: tuple[int, ...]
    """The token that would be right in its place; -1 where it does not matter which one stands there."""
    lost: tuple[tuple[int, ...], ...]
    """The decisions that cannot be taken any more if the token is not `right_id`; none for decisions."""
    num_decisions: int
    """How many the answer has, taken or not."""
    exact: bool
    """Whether all must be right for a reward; else the reward is the share that is."""


def only_right(ids: Sequence[int], gold: Sequence[int]) -> Truth:
    """The truth of a task where one completion alone, `gold`, earns the reward: every token of it is a decision.

    Up to the first token that is another, what is written is worth the probability of the rest of `gold`;
    nothing after it is worth anything, nor are ids after the end of `gold`.

    >>> facts = only_right([5, 6, 8, 7], gold=[5, 6, 7, 9])
    >>> facts.decision, facts.right, facts.right_id, facts.num_decisions
    ((0, 1, 2, -1), (True, True, False, False), (5, 6, 7, -1), 4)
    """
    decision, right, right_id = [-1] * len(ids), [False] * len(ids), [-1] * len(ids)
    for t, (written, wanted) in enumerate(zip(ids, gold, strict=False)):
        decision[t], right[t], right_id[t] = t, written == wanted, wanted
        if written != wanted:
            break
    return Truth(
        decision=tuple(decision),
        right=tuple(right),
        right_id=tuple(right_id),
        lost=((),) * len(ids),
        num_decisions=len(gold),
        exact=True,
    )


def token_texts(ids: Sequence[int], tokenizer: Any) -> list[str]:
    """The text of each token alone; empty for special tokens."""
    return [str(tokenizer.decode([token], skip_special_tokens=True)) for token in ids]
