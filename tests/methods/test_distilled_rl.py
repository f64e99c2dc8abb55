"""Distilled RL: clipped ratios over their geometric mean, by hand from arXiv:2607.17247."""

import math

import pytest
import torch

from gear_rl.methods import DistilledRl
from methods.completions import completion


def from_ratios(*ratios):
    """One completion whose teacher finds each token so many times as likely as the student, who gives 1/20."""
    return completion(student=[math.log(1 / 20)] * len(ratios), teacher=[math.log(r / 20) for r in ratios])


FOUR = from_ratios(2, 8, 1 / 8, 1)
"""Clipped to 3: 2, 3, 1/3, 1, whose product is 2; the geometric mean is its fourth root."""
ROOT = 2**0.25


@pytest.mark.parametrize(
    ("method", "advantage", "weight"),
    [
        (DistilledRl(), 2.0, [2 / ROOT, 3 / ROOT, 1 / (3 * ROOT), 1 / ROOT]),
        # negative sample reset
        (DistilledRl(), -2.0, [1, 1, 1, 1]),
        (DistilledRl(positive_only=False), -2.0, [2 / ROOT, 3 / ROOT, 1 / (3 * ROOT), 1 / ROOT]),
        (DistilledRl(normalise=False), 2.0, [2, 3, 1 / 3, 1]),
        # 3/2, 3/2, 2/3, 1: the product is 3/2
        (DistilledRl(clip_ratio=1.5), 2.0, [1.5**0.75, 1.5**0.75, (2 / 3) * 1.5**-0.25, 1.5**-0.25]),
    ],
)
def test_worked_by_hand(method, advantage, weight):
    credit = method(torch.tensor([advantage]), FOUR)
    assert credit.advantage[0].tolist() == pytest.approx([advantage * w for w in weight], rel=1e-5)
    assert credit.segment_id.tolist() == [[0, 1, 2, 3]]
