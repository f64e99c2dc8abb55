"""What is true about every token of a completion of "codebook": which decision it is, and whether it is right.

Pure functions of ids: knows no model and no method.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gear_rl.arena.codebook.problem import EXACT, decisions, wanted
from gear_rl.arena.truth import Truth


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
