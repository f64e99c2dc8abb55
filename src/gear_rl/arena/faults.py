"""Completions of held-out problems with one planted fault, and right ones beside them, as token ids."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from gear_rl.arena.chain import problem as chain
from gear_rl.arena.chain.check import first_difference
from gear_rl.arena.ledger import problem as ledger
from gear_rl.arena.ledger.episodes import Fault, episode, plant, tokens, turn_text
from gear_rl.arena.model import EOS

Reference = Literal["trace", "shuffled"]
"""What the teacher is shown: the right solution, or that of another problem."""
Turns = list[list[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A problem, a completion of it with one fault, and a right one."""

    row: dict[str, Any]
    faulty: Turns
    """The ids of each turn of the completion with the fault, closing tokens included."""
    right: Turns
    fault: range
    """Which tokens of the faulty completion are the fault, tool answers counted."""


def cases(
    tokenizer: Any,
    task: str,
    tier: str,
    num: int,
    *,
    reference: Reference = "trace",
    fault: Fault = "relation",
) -> list[Case]:
    """The first ``num`` held-out problems of a tier in which a fault can be planted, with the fault.

    The fault is the first wrong token: what follows is consistent with it. ``fault`` is the kind of the task
    "ledger": a wrong tool, or payer and payee mixed up. Raises ``ValueError`` where too few problems take one.
    """
    make = _chain if task == "chain" else _ledger
    found: list[Case] = []
    for seed in chain.HELD_OUT if task == "chain" else ledger.HELD_OUT:
        try:
            found.append(make(tokenizer, tier, seed, reference, fault))
        except ValueError:
            continue  # no such fault costs the reward of this problem
        if len(found) == num:
            return found
    raise ValueError(f"n: {num} is not possible; faults fit into {len(found)} held-out problems of {tier!r}")


def _chain(tokenizer: Any, tier: str, seed: int, reference: Reference, fault: Fault) -> Case:
    problem = chain.generate(seed, tier)
    [row] = chain.rows(tier, num=1, reference=reference, first_seed=seed)
    wrong = tokenizer(chain.plant(problem, seed).completion + EOS)["input_ids"]
    right = tokenizer(chain.solve(problem).trace + EOS)["input_ids"]
    return Case(row=row, faulty=[wrong], right=[right], fault=_first(wrong, right))


def _ledger(tokenizer: Any, tier: str, seed: int, reference: Reference, fault: Fault) -> Case:
    problem = ledger.generate(seed, tier)
    wrong, right = plant(problem, seed, fault).messages, episode(problem).messages

    def turns(messages: list[dict[str, Any]]) -> Turns:
        return [tokenizer(turn_text(m) + EOS)["input_ids"] for m in messages if m["role"] == "assistant"]

    [row] = ledger.rows(tier, num=1, reference=reference, first_seed=seed)
    place = _first(tokens(tokenizer, wrong)[0], tokens(tokenizer, right)[0])
    return Case(row=row, faulty=turns(wrong), right=turns(right), fault=place)


def _first(wrong: list[int], right: list[int]) -> range:
    place = first_difference(wrong, right)
    if place is None or place >= len(wrong):
        raise ValueError("the fault shows in no token")
    return range(place, place + 1)
