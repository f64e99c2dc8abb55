"""What is true about every token of a completion of "chain": it can be right while it is the worked solution.

Pure functions of ids: knows no model and no method.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gear_rl.arena.chain.problem import read, solve
from gear_rl.arena.truth import Truth, only_right


def truth(ids: Sequence[int], row: Mapping[str, Any], tokenizer: Any) -> Truth:
    """Every token of the worked solution is a decision, its closing token too; reads the row's `prompt`.

    A reward after a departure is luck: a wrong sum healed by a later one, or one in a hundred by the last number.
    Raises KeyError for a row without a prompt, ValueError for one that is no chain.
    """
    trace = solve(read(str(row["prompt"][-1]["content"]))).trace
    gold = [*tokenizer(trace)["input_ids"], int(tokenizer.eos_token_id)]
    return only_right(ids, gold)
