"""Faults in completions: problems in which one can be planted, where it is, and how well numbers rank it.

Knows no task.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

Planted = TypeVar("Planted")


def first_planted(
    plant: Callable[[int], Planted], seeds: Iterable[int], num: int, tier: str
) -> list[Planted]:
    """The first `num` results of `plant`, seed by seed; a seed for which it raises ValueError is passed over.

    Raises ValueError where too few problems take a fault.

    >>> first_planted(lambda seed: int("0130"[seed:]), range(9), num=2, tier="easy")
    [130, 130]
    """
    planted: list[Planted] = []
    for seed in seeds:
        try:
            planted.append(plant(seed))
        except ValueError:
            continue  # no such fault costs the reward of this problem
        if len(planted) == num:
            return planted
    raise ValueError(
        f"n: {num} is not possible; faults fit into {len(planted)} held-out problems of {tier!r}"
    )


def first_difference(ids: Sequence[int], gold: Sequence[int]) -> int | None:
    """The first position at which `ids` leaves `gold`; None if it never does.

    >>> first_difference([5, 6, 7], [5, 6, 8, 9])
    2
    """
    for position, (one, other) in enumerate(zip(ids, gold, strict=False)):
        if one != other:
            return position
    return None if len(ids) >= len(gold) else len(ids)


def first_wrong(wrong: Sequence[int], right: Sequence[int]) -> range:
    """The place of the first wrong token. Raises ValueError where there is none.

    >>> first_wrong([5, 6, 7], [5, 6, 8, 9])
    range(2, 3)
    """
    place = first_difference(wrong, right)
    if place is None or place >= len(wrong):
        raise ValueError("the fault shows in no token")
    return range(place, place + 1)


def auc(positives: Sequence[float], negatives: Sequence[float]) -> float:
    """The chance that a positive is larger than a negative, ties counting half; NaN without either.

    >>> auc([3.0, 2.0], [1.0, 2.0])
    0.875
    """
    import torch

    if not positives or not negatives:
        return float("nan")
    high = torch.tensor(positives, dtype=torch.float64)
    low = torch.tensor(negatives, dtype=torch.float64).sort().values
    below = torch.searchsorted(low, high, side="left") + torch.searchsorted(low, high, side="right")
    return float(below.double().mean()) / (2 * len(negatives))
