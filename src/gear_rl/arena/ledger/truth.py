"""What is true about every token of a rollout of "ledger": as long as it makes the right calls, it can be right.

Pure functions of ids: knows no model and no method.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gear_rl.arena.calls import tokens
from gear_rl.arena.ledger.episodes import episode
from gear_rl.arena.ledger.problem import generate
from gear_rl.arena.truth import Truth, only_right


def truth(ids: Sequence[int], row: Mapping[str, Any], tokenizer: Any) -> Truth:
    """Every token of the right calls is a decision, to the end of the payment's turn; reads `seed` and `tier`.

    `ids` are the whole rollout's, tool answers included, as the trainer joins them. Who asked the wrong person
    and came to the right one all the same was lucky (15 of the first student's 52 successes in 256 rollouts of
    the tier `hard`, none of 113 on `easy`): that counts as nothing here. What is said after the payment is worth
    nothing. Raises KeyError for a row without seed or tier.
    """
    right = episode(generate(row["seed"], row["tier"])).messages
    # The last two are what the tool says to the payment, and the assistant's farewell.
    gold, own = tokens(tokenizer, right[:-2])
    return only_right(ids, gold, own)
