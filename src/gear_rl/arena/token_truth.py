"""The truth about a completion's tokens, in tasks that know it. Knows no task, no model and no method."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class Truth:
    """The decisions among a completion's tokens, and the tokens that they depend on; one entry per token.

    If decisions do not depend on each other, the true advantage of a token is exact. Let p be the policy's
    probability of `right_id`. Where the reward is the share of right decisions, that of a decision is
    (right - p) / `num_decisions`. Where all must be right, it is (right - p) times the probability that every
    other decision is right, which is 0 after a wrong one. That of a token of the form is (right - p) times the
    expected reward of the decisions that would be `lost` without it. It is 0 for every other token.
    """

    decision: list[int]
    """The number of the answer's decision that the token takes, from 0; -1 where it takes none."""
    right: list[bool]
    """Whether it is `right_id`, or part of a right decision in several tokens."""
    right_id: list[int]
    """The right token in its place; -1 where any will do."""
    lost: list[tuple[int, ...]]
    """The decisions that become impossible if the token is not `right_id`; none for decisions."""
    num_decisions: int
    """The answer's decisions, taken or not."""
    exact: bool
    """Whether all must be right for a reward; else the reward is the share of right ones."""

    @classmethod
    def blank(cls, size: int, num_decisions: int, exact: bool) -> "Truth":
        """The truth about ``size`` tokens without a decision among them, which a task fills in."""
        return cls([-1] * size, [False] * size, [-1] * size, [()] * size, num_decisions, exact)

    @property
    def mistakes(self) -> tuple[int, ...]:
        """The places of wrong decisions, of each its first token, and of tokens that lose decisions."""
        return tuple(
            t
            for t, right in enumerate(self.right)
            if not right and (self.lost[t] or self.decision[t] not in (-1, *self.decision[:t]))
        )


def only_right(ids: Sequence[int], gold: Sequence[int]) -> Truth:
    """The truth of a task where only the completion `gold` earns the reward: each of its tokens is a decision.

    Nothing after the first other token, nor after the end of `gold`, is a decision.

    >>> facts = only_right([5, 6, 8, 7], gold=[5, 6, 7, 9])
    >>> facts.decision, facts.right, facts.right_id, facts.num_decisions
    ([0, 1, 2, -1], [True, True, False, False], [5, 6, 7, -1], 4)
    """
    facts = Truth.blank(len(ids), len(gold), exact=True)
    for t, (written, wanted) in enumerate(zip(ids, gold, strict=False)):
        facts.decision[t], facts.right[t], facts.right_id[t] = t, written == wanted, wanted
        if written != wanted:
            break
    return facts


def token_texts(ids: Sequence[int], tokenizer: Any) -> list[str]:
    """The text of each token alone; empty for special tokens."""
    return [str(tokenizer.decode([token], skip_special_tokens=True)) for token in ids]
