"""What is true about every token of a completion of "codebook": which decision it is, and whether it is right.

Pure functions of ids: knows no model and no method.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gear_rl.arena.codebook.problem import EXACT, decisions, wanted


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


def truth(ids: Sequence[int], row: Mapping[str, Any], tokenizer: Any) -> Truth:
    """The decisions of a completion's token ids; reads the row's `answer`.

    What counts as a decision is what the reward counts: the first code for each symbol that was to be looked
    up. Special tokens are skipped as the reward's text skips them, and nothing after the first closing token
    counts. A code in several tokens (two digits where one token would do) is one decision in all of them.
    Raises KeyError for a row without an answer.
    """
    answer = str(row["answer"])
    pieces = _pieces(ids, tokenizer)
    token_of = [t for t, piece in enumerate(pieces) for _ in piece]
    codes = [*wanted(answer).values()]
    decision, right, right_id = [-1] * len(pieces), [False] * len(pieces), [-1] * len(pieces)
    for taken in decisions("".join(pieces), answer):
        for t in {token_of[char] for char in range(taken.start, taken.end)}:
            decision[t], right[t] = taken.index, taken.right
            right_id[t] = int(tokenizer.convert_tokens_to_ids(f" {codes[taken.index]}"))
    return Truth(
        decision=tuple(decision),
        right=tuple(right),
        right_id=tuple(right_id),
        num_decisions=len(codes),
        exact=answer.startswith(EXACT),
    )


def _pieces(ids: Sequence[int], tokenizer: Any) -> list[str]:
    """The text of each token; empty for special tokens and from the closing token on."""
    end = [*ids, tokenizer.eos_token_id].index(tokenizer.eos_token_id)
    texts = [str(tokenizer.decode([token], skip_special_tokens=True)) for token in ids[:end]]
    return [*texts, *[""] * (len(ids) - end)]
