"""Finding a planted fault: numbers by hand, and what is not counted."""

import json
import math

import pytest

from gear_rl.lab.localisation import Located, localisation, locate

INF = math.inf


def bools(text: str) -> list[bool]:
    """`x` is True."""
    return [c == "x" for c in text]


def one(score: list[float], fault: str, mask: str | None = None, onset: str | None = None) -> Located | str:
    kept = [True] * len(fault) if mask is None else bools(mask)
    return locate(score, bools(fault), kept, None if onset is None else bools(onset))


@pytest.mark.parametrize(
    ("score", "fault", "mask", "onset", "found"),
    [
        # Faulty 3 and 1 against 0, 2, 1, 1: 3 beats four; 1 beats the 0 and ties with two: (4 + 1 + 2/2) / 8.
        # Mass 4 of 8 on 2 of 6 tokens. 3 is the highest. The fault is at 2 and 3, the onsets at 0 and 5.
        ([0, 2, 3, 1, 1, 1], "..xx..", None, "x....x", Located(0.75, 0.5, 1.5, 1.0, 2)),
        # Within the mask: 2, 3 (faulty), 1. The faulty 9 outside is no fault, the onset outside no onset.
        ([2, math.nan, 3, INF, 9, 1], ".xx.x.", "x.x..x", ".x...x", Located(1.0, 0.5, 1.5, 1.0, 1)),
        # 1 | 5 5 5 | 7: the faulty 5 shares the ranks 2, 3, 4. Of two faulty ones the best rank is that of the 7.
        ([5, 5, 1, 7, 5], "x....", None, None, Located(0.5, 5 / 23, 5 / 23 / (1 / 5), 3.0, None)),
        ([0] * 3, ".x.", None, "...", Located(0.5, 1 / 3, 1.0, 2.0, None)),
        # 1e-5 of 8 is 8e-5: the faulty 1 ties with the two that are nearer, and with those alone.
        ([1, 1.00007, 0.99993, 1.00009, 0.99991, -8], "x.....", None, None,
         Located(3 / 5, pytest.approx(1 / 13), pytest.approx(6 / 13), 3.0, None)),
        # The order is that of the signed values, the mass that of the absolute ones.
        ([-1, -4, 3], ".x.", None, None, Located(0.0, 0.5, 1.5, 3.0, None)),
    ],
)  # fmt: skip
def test_worked_by_hand(score, fault, mask, onset, found):
    assert one([float(value) for value in score], fault, mask, onset) == found


@pytest.mark.parametrize(
    ("score", "fault", "mask", "reason"),
    [
        ([1.0, 2.0], "..", "xx", "no_fault"),
        ([1.0, 2.0], ".x", ".x", "all_fault"),
        ([1.0, -INF], ".x", "xx", "not_finite"),
    ],
)
def test_what_is_not_counted_has_its_reason(score, fault, mask, reason):
    assert one(score, fault, mask) == reason


def test_means_with_intervals():
    rows = [
        Located(auc=1.0, share=0.5, lift=2.0, rank=1.0, distance=0),
        Located(auc=0.5, share=0.25, lift=1.0, rank=4.0, distance=None),
        Located(auc=0.75, share=0.75, lift=3.0, rank=1.0, distance=3),
    ]
    left = ["no_fault", "not_finite", "not_finite", "fallback"]
    found = localisation([*rows, *left], "floor", rows[:1])
    assert (found["role"], found["n"], found["with_choices"], found["with_onset"]) == ("floor", 3, 1, 2)
    assert found["left_out"] == {"no_fault": 1, "all_fault": 0, "not_finite": 2, "fallback": 1}
    means = [found[name] for name in ("auc", "share", "lift", "rank", "distance", "auc_choices")]
    assert means == pytest.approx([0.75, 0.5, 2.0, 2.0, 1.5, 1.0])
    low, high = found["auc_interval"]
    assert 0.5 <= low < 0.75 < high <= 1.0
    json.dumps(found, allow_nan=False)
