"""What is true about every token of a completion of independent decisions. Knows no task and no model."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """The decisions among a completion's tokens; one entry per token, what is no decision has -1 and False.

    Decisions do not depend on each other, so the true advantage of one is exact. Where the reward is the share
    of right codes it is (right - p) / `num_decisions`, with the policy's probability p of `right_id` at that
    token. Where all codes must be right it is (right - p) times the probability that every other decision is
    right, which is 0 after a wrong one. A token that is no decision has an advantage of 0 as long as it keeps
    the form: a symbol that is left out costs its decision.
    """

    decision: tuple[int, ...]
    """Which of the answer's codes the token gives, from 0."""
    right: tuple[bool, ...]
    """Whether that code is right."""
    right_id: tuple[int, ...]
    """The token that would be right in its place."""
    num_decisions: int
    """How many the answer has, taken or not."""
    exact: bool
    """Whether all must be right for a reward; else the reward is the share that is."""
