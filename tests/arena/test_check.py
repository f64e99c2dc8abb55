"""The measured facts: a slow twin for the AUC and the alignment, and the signals' promised order."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gear_rl.arena import evaluate, faults, model
from gear_rl.arena.chain import check
from gear_rl.arena.chain import problem as chain

torch.set_num_threads(1)
numbers = st.lists(st.integers(-3, 3).map(float), min_size=1, max_size=7)


@given(positives=numbers, negatives=numbers)
def test_auc_counts_the_pairs(positives: list[float], negatives: list[float]) -> None:
    won = 0.0
    for p in positives:
        for n in negatives:
            won += 1.0 if p > n else 0.5 if p == n else 0.0
    assert faults.auc(positives, negatives) == pytest.approx(won / (len(positives) * len(negatives)))


def test_auc_of_nothing_is_nan() -> None:
    assert math.isnan(faults.auc([], [1.0]))


@pytest.mark.parametrize(
    ("ids", "gold", "expected"),
    [([1, 2], [1, 2], None), ([1, 3], [1, 2], 1), ([1], [1, 2], 1), ([1, 2, 3], [1, 2], None)],
)
def test_first_difference(ids: list[int], gold: list[int], expected: int | None) -> None:
    assert faults.first_difference(ids, gold) == expected


@pytest.fixture(scope="module")
def loaded() -> tuple[Any, Any]:
    return model.load()


def test_the_informed_teacher_finds_the_first_wrong_token(loaded: tuple[Any, Any]) -> None:
    facts = check.check(*loaded, n=48, tiers=["default"])["default"]
    for kind in ("on_policy", "planted"):
        assert facts[kind]["n"] >= 15
        assert facts[kind]["log_ratio"] > 0.9
        assert facts[kind]["log_ratio"] > facts[kind]["shuffled_log_ratio"] + 0.1
    assert facts["on_policy"]["divergence"] > 0.85
    assert facts["sampled_trace"] > facts["sampled"] + 0.2
    assert facts["greedy"] >= facts["sampled"]


def test_sampling_does_not_depend_on_the_order_of_greedy_rows(loaded: tuple[Any, Any]) -> None:
    rows = chain.rows("default", num=7, first_seed=0)
    forward = evaluate.sample(*loaded, rows, greedy=True, batch_size=3)
    backward = evaluate.sample(*loaded, rows[::-1], greedy=True, batch_size=7)
    assert forward == backward[::-1]
