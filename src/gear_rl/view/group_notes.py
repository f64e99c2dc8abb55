"""A completion beside the others of its group: whether it has an advantage at all, and where its mistake is."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from itertools import groupby
from statistics import fmean
from typing import Any

from gear_rl.records import Record

NOISE, NOISE_SHARE = 2e-3, 1e-5
"""An advantage is rounding noise below the first where all rewards of the group are equal (float32 over TRL's
deviation of 1e-4 gives up to .0012), elsewhere below that share of the group's largest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged(Record):
    """A record with what its group says of it."""

    equal: bool = False
    """Whether all rewards of the group are equal."""
    mistake: int | None = None
    """Where it first differs from the right completions (reward 1), if there are several and all are the same:
    then there is one solution, and this token is wrong."""
    solution: tuple[str, ...] = ()
    """The tokens of that solution."""


def judge_groups(records: Iterable[Record]) -> Iterator[Judged]:
    """The records in their order, each beside its group; an advantage that is rounding noise becomes 0."""
    for _, group in groupby(records, key=lambda record: (record.step, record.group)):
        members = list(group)
        rewards = [member.reward for member in members]
        equal = None not in rewards and len(set(rewards)) == 1
        sizes = [abs(member.advantage) for member in members if math.isfinite(member.advantage)]
        noise = NOISE if equal else NOISE_SHARE * max(sizes, default=0.0)
        right = [member for member in members if member.reward is not None and member.reward >= 1]
        one_way = len(right) > 1 and all(member.ids == right[0].ids for member in right)
        solution = right[0] if one_way else None
        for member in members:
            values: dict[str, Any] = {field.name: getattr(member, field.name) for field in fields(Record)}
            if 0 < abs(member.advantage) < noise:
                values |= _without_noise(member)
            if solution is not None:
                pairs = enumerate(zip(member.ids, solution.ids, strict=False))
                differs = next((t for t, (written, due) in pairs if written != due), None)
                if differs is not None and member.mask[differs]:
                    values |= {"mistake": differs, "solution": tuple(solution.tokens)}
            yield Judged(**values, equal=equal)


def _without_noise(record: Record) -> dict[str, Any]:
    """Advantage 0, and no credit where that is the noise times weights."""
    size = fmean([abs(credit) for credit in finite_values(record, record.credit)] or [0.0])
    if size <= 10 * abs(record.advantage):
        return {"advantage": 0.0, "credit": [0.0] * len(record.credit), "weight": [*map(float, record.mask)]}
    return {"advantage": 0.0, "weight": [credit / size for credit in record.credit]}


def is_weight_on_mistake(record: Record) -> bool | None:
    """Whether the first mistake of a blamed completion has its largest weight; None where it is not known, or
    where all weights are equal."""
    if not isinstance(record, Judged) or record.mistake is None or not _is_weighted(record):
        return None
    return record.weight[record.mistake] >= (1 - NOISE_SHARE) * max(finite_values(record, record.weight))


def _is_weighted(record: Record) -> bool:
    """Whether it is blamed, and for some tokens more than for others."""
    weights = finite_values(record, record.weight)
    uneven = bool(weights) and max(weights) - min(weights) > NOISE_SHARE * max(map(abs, weights))
    return -math.inf < record.advantage < 0 and record.fallback is None and uneven


def group_note(record: Record) -> str:
    """What a reader should know before taking the largest weight for the mistake; empty where nothing.

    >>> right = {"step": 1, "group": 0, "method": "gear", "prompt": "1+1", "tokens": ["2", "!"], "ids": [2, 9],
    ...     "mask": [1, 1], "turn": [0, 0], "segment": [0, 1], "reward": 1.0, "advantage": 0.5,
    ...     "credit": [0.5, 0.5], "weight": [1.0, 1.0]}
    >>> wrong = right | {"tokens": ["3", "!"], "ids": [3, 9], "reward": 0.0, "advantage": -1.0,
    ...     "credit": [-0.5, -1.5], "weight": [0.5, 1.5]}
    >>> [group_note(record) for record in judge_groups([Record(**right), Record(**right), Record(**wrong)])]
    ['', '', 'first mistake: 3, weight 0.5, largest 1.5']
    """
    if isinstance(record, Judged) and record.equal and not record.advantage:
        credit = "the credit is not from them" if any(record.credit) else "no credit"
        return f"all rewards of its group are equal: {credit}"
    found = is_weight_on_mistake(record)
    if isinstance(record, Judged) and record.mistake is not None and found is not None:
        weight, text = record.weight[record.mistake], record.tokens[record.mistake].strip()
        largest = "the largest" if found else f"largest {max(finite_values(record, record.weight)):.2g}"
        return f"first mistake: {text}, weight {weight:.2g}, {largest}"
    return "the largest weight need not be on the mistake" if _is_weighted(record) else ""


def share_note(found: Iterable[bool | None]) -> str:
    """How often `is_weight_on_mistake` holds, in a sentence; empty where no mistake is known.

    >>> share_note([True, None, False, False])
    'In 1 of 3 blamed completions whose first mistake is known, it has the largest weight.'
    """
    known = [one for one in found if one is not None]
    which = f"{sum(known)} of {len(known)} blamed completions whose first mistake is known"
    return f"In {which}, it has the largest weight." if known else ""


def finite_values(record: Record, values: Iterable[float]) -> list[float]:
    """The finite ones among values of tokens, without those of tool output."""
    pairs = zip(values, record.mask, strict=True)
    return [value for value, trained in pairs if trained and math.isfinite(value)]
