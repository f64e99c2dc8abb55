"""Finding a planted fault: numbers by hand, a slow twin for every measure, what says nothing and is counted."""

import json
import math
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gear_rl.lab.localisation import LEFT_OUT, Located, localisation, locate, onsets_of

INF = math.inf


def bools(text: str) -> list[bool]:
    """`x` is True."""
    return [c == "x" for c in text]


def one(score: list[float], fault: str, mask: str | None = None, onset: str | None = None) -> Located | str:
    return locate(
        score,
        bools(fault),
        [True] * len(fault) if mask is None else bools(mask),
        None if onset is None else bools(onset),
    )


def test_worked_by_hand():
    # Faulty 3 and 1 against 0, 2, 1, 1: 3 beats four; 1 beats the 0 and ties with two: (4 + 1 + 2/2) / 8.
    # Mass 4 of 8 on 2 of 6 tokens. 3 is the highest. The fault is at 2 and 3, the onsets at 0 and 5.
    found = one([0.0, 2.0, 3.0, 1.0, 1.0, 1.0], "..xx..", onset="x....x")
    assert found == Located(auc=0.75, share=0.5, lift=1.5, rank=1.0, distance=2)


def test_tokens_outside_the_mask_are_not_there():
    # Left: 2, 3 (faulty), 1. The faulty 9 outside is no fault, the onset outside no onset.
    found = one([2.0, math.nan, 3.0, INF, 9.0, 1.0], ".xx.x.", mask="x.x..x", onset=".x...x")
    assert found == Located(auc=1.0, share=0.5, lift=1.5, rank=1.0, distance=1)


def test_ties_share_their_mean_place():
    # 1 | 5 5 5 | 7: the faulty 5 shares the places 2, 3, 4.
    assert one([5.0, 5.0, 1.0, 7.0, 5.0], "x....").rank == 3.0
    # Two faulty ones: the best place is that of the 7.
    assert one([5.0, 5.0, 1.0, 7.0, 5.0], "x..x.").rank == 1.0


@pytest.mark.parametrize("level", [0.0, 2.0])
def test_even_scores_find_nothing(level):
    # Three tokens, places 1 to 3: mean 2.
    assert one([level] * 3, ".x.") == Located(auc=0.5, share=1 / 3, lift=1.0, rank=2.0, distance=None)


def test_a_signal_may_be_negative():
    """The order is that of the signed values, the mass that of the absolute ones."""
    found = one([-1.0, -4.0, 3.0], ".x.")
    assert (found.auc, found.rank, found.share) == (0.0, 3.0, 0.5)


@pytest.mark.parametrize(
    ("onset", "distance"), [("..x..", 0), ("x....", 1), ("....x", 2), (".....", None), ("x...x", 1)]
)
def test_distance_to_the_nearest_onset(onset, distance):
    assert one([1.0] * 5, ".xx..", onset=onset).distance == distance


def test_an_onset_is_the_first_token_of_a_long_segment():
    assert onsets_of([0, 1, 1, 2, 3, 3, 3, -1, -1]) == bools(".x..x....")
    assert onsets_of([0, 0, -1, 1, 1, -1, 2, -1, -1]) == bools("x..x.....")


@pytest.mark.parametrize(
    ("score", "fault", "mask", "reason"),
    [
        ([1.0, 2.0], "..", "xx", "no_fault"),
        ([1.0, 2.0], ".x", "x.", "no_fault"),
        ([1.0, 2.0], "xx", "xx", "all_fault"),
        ([1.0, 2.0], ".x", ".x", "all_fault"),
        ([1.0, 2.0], "xx", "..", "no_fault"),
        ([1.0, math.nan], "x.", "xx", "not_finite"),
        ([1.0, INF], ".x", "xx", "not_finite"),
        ([1.0, -INF], ".x", "xx", "not_finite"),
    ],
)
def test_what_says_nothing_has_its_reason(score, fault, mask, reason):
    assert one(score, fault, mask) == reason
    assert reason in LEFT_OUT


def test_what_differs_by_rounding_ties():
    """1e-5 of 8 is 8e-5: the faulty 1 ties with the two that are nearer, and with those alone."""
    score = [1.0, 1.00007, 0.99993, 1.00009, 0.99991, -8.0]
    found = one(score, "x.....")
    assert isinstance(found, Located) and (found.auc, found.rank) == ((2 + 2 / 2) / 5, 3.0)
    # One more digit, on another processor.
    assert one([0.676292, 0.676293, 0.676292], "x..").auc == one([0.676292] * 3, "x..").auc == 0.5


def slow(score: list[float], fault: list[bool], mask: list[bool], onset: list[bool]) -> Located | None:
    tokens = [t for t in range(len(mask)) if mask[t]]
    faulty, others = [t for t in tokens if fault[t]], [t for t in tokens if not fault[t]]
    if not faulty or not others:
        return None
    wins, slack = 0.0, 1e-5 * max(abs(score[t]) for t in tokens)
    for t in faulty:
        for u in others:
            wins += 1.0 if score[t] > score[u] + slack else 0.0 if score[t] < score[u] - slack else 0.5
    mass = sum(abs(score[t]) for t in tokens)
    even = len(faulty) / len(tokens)
    share = sum(abs(score[t]) for t in faulty) / mass if mass else even
    places = []
    for t in faulty:
        higher = sum(score[u] > score[t] + slack for u in tokens)
        equal = sum(abs(score[u] - score[t]) <= slack for u in tokens)
        places.append(higher + (1 + equal) / 2)
    gaps = [abs(tokens.index(t) - tokens.index(u)) for t in faulty for u in tokens if onset[u]]
    return Located(
        auc=wins / len(faulty) / len(others),
        share=share,
        lift=share / even,
        rank=min(places),
        distance=min(gaps) if gaps else None,
    )


ROWS = st.lists(st.tuples(st.integers(-2, 3), st.booleans(), st.booleans(), st.booleans()), max_size=12)


@given(ROWS)
def test_every_measure_is_the_loop(row):
    score = [float(values[0]) for values in row]
    fault, mask, onset = ([values[k] for values in row] for k in (1, 2, 3))
    found = locate(score, fault, mask, onset)
    expected = slow(score, fault, mask, onset)
    if expected is None:
        assert found in ("no_fault", "all_fault")
    else:
        assert asdict(found) == pytest.approx(asdict(expected))


def test_means_with_intervals():
    rows = [
        Located(auc=1.0, share=0.5, lift=2.0, rank=1.0, distance=0),
        Located(auc=0.5, share=0.25, lift=1.0, rank=4.0, distance=None),
        Located(auc=0.75, share=0.75, lift=3.0, rank=1.0, distance=3),
    ]
    left = ["no_fault", "not_finite", "not_finite", "fallback"]
    found = localisation("gear", [*rows, *left], role="method")
    assert (found["name"], found["role"], found["n"]) == ("gear", "method", 3)
    assert found["left_out"] == {"no_fault": 1, "all_fault": 0, "not_finite": 2, "fallback": 1}
    assert found["auc"][0] == pytest.approx(0.75)
    assert found["share"][0] == pytest.approx(0.5)
    assert found["lift"][0] == pytest.approx(2.0)
    assert found["rank"][0] == pytest.approx(2.0)
    assert (found["distance"][0], found["distance"][2]) == (1.5, 2)
    assert 0.5 <= found["auc"][1].low < 0.75 < found["auc"][1].high <= 1.0
    again = localisation("gear", rows)
    assert again["auc"] == found["auc"], "what is left out changes no number"
    json.dumps(found, allow_nan=False)


def test_nothing_to_average():
    found = localisation("gear", ["no_fault"])
    assert (found["n"], found["auc"]) == (0, (None, None, 0))
    json.dumps(found, allow_nan=False)
