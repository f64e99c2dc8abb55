"""The numbers of the `gear/*` metrics, worked by hand."""

import pytest
import torch

from gear_rl.engines.measures import FALLBACKS, finished, measured
from gear_rl.types import Credit, TokenSignals


def test_two_completions_by_hand():
    mask = torch.tensor([[True] * 5 + [False], [True, True, False, True, False, False], [True] * 6])
    weight = torch.tensor([[0.5, 1.5, 1.5, 0.75, 0.75, 9.0], [1.0, 1.0, 9.0, 1.0, 9.0, 9.0], [4.0] * 6])
    segment_id = torch.tensor([[0, 1, 1, 2, 3, -1], [0, 0, -1, 1, -1, -1], [0] * 6])
    advantage_B = torch.tensor([2.0, -1.0, 1.0])
    credit = Credit.from_weights(advantage_B, weight, segment_id)
    divergence = torch.tensor([[0.0, 3.0, 0.0, 1.0, 0.0, 7.0], [0.5, 0.5, 7.0, 3.0, 7.0, 7.0], [9.0] * 6])
    signals = TokenSignals(mask=mask, divergence=divergence)
    scored_B = torch.tensor([True, True, True])
    fallback_B = {name: torch.zeros(3, dtype=torch.bool) for name in FALLBACKS}
    fallback_B["non_finite"] = torch.tensor([False, False, True])  # the third is left out of every mean

    sums, largest = measured(credit, signals, advantage_B, scored_B, fallback_B)
    found = finished({name: value.item() for name, value in sums.items()}, largest.item(), seconds=0.25)
    assert found == {
        "gear/fallback/no_context": 0.0,
        "gear/fallback/non_finite": 1.0,
        "gear/fallback/no_token": 0.0,
        "gear/fallbacks": 1.0,
        "gear/scored": 3.0,
        "gear/credit_seconds": 0.25,
        "gear/divergence/mean": 8 / 8,
        "gear/segments/per_completion": 2 / 2,  # one of two tokens in each; single tokens do not count
        "gear/segments/token_share": 4 / 8,
        "gear/segments/length": 4 / 2,
        # (5^2 / (0.25 + 2.25 + 2.25 + 0.5625 + 0.5625) + 3^2 / 3) / 2
        "gear/weight/effective_tokens": pytest.approx((25 / 5.875 + 3) / 2),
        "gear/weight/max": 1.5,
    }


def test_nothing_scored_leaves_the_means_out():
    mask = torch.ones(2, 3, dtype=torch.bool)
    credit = Credit(advantage=torch.zeros(2, 3), segment_id=torch.zeros(2, 3, dtype=torch.long))
    none_B = torch.zeros(2, dtype=torch.bool)
    sums, largest = measured(
        credit, TokenSignals(mask=mask), torch.zeros(2), none_B, dict.fromkeys(FALLBACKS, none_B)
    )
    found = finished({name: value.item() for name, value in sums.items()}, largest.item(), seconds=0.0)
    assert found["gear/scored"] == 0.0
    assert not [name for name in found if "/mean" in name or "segments" in name or "weight" in name]
