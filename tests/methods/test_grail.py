"""GRAIL: numbers worked by hand from arXiv:2606.04889 and its release."""

import math

import pytest
import torch

from gear_rl.methods import Grail
from gear_rl.types import TokenSignals

NAN = math.nan


def completions(region, level):
    """Rows of regions and of log-saliencies (before the 1e-8); -1 is masked, -inf a saliency of 0."""
    region = torch.tensor(region)
    saliency = torch.tensor(level, dtype=torch.float64).exp().float()
    return TokenSignals(mask=region >= 0, answer_region=region, answer_activation=saliency)


FOUR = completions([[0, 0, -1, 2, 1]], [[4, 2, NAN, 2, 4]])
"""Mean 3 and deviation 1: z = 1, -1, -1, 1."""


@pytest.mark.parametrize(
    ("method", "advantage", "expected"),
    [
        # 1 + 0.5 z before the answer; then 1 on the delimiter and 5 on the content.
        (Grail(), -2.0, [1.5, 0.5, 0, 1, 5]),
        # A success keeps its advantage, but its content is overridden all the same.
        (Grail(), 2.0, [1, 1, 0, 1, 5]),
        (Grail(symmetry="correct"), -2.0, [1, 1, 0, 1, 5]),
        (Grail(symmetry="both"), 2.0, [1.5, 0.5, 0, 1, 5]),
        (Grail(std=1.5), -2.0, [2.5, 0.5, 0, 1, 5]),  # clipped below
        (Grail(std=1.5, max_weight=2.0), -2.0, [2, 0.5, 0, 1, 2]),  # and above
        (Grail(mean=2.0, std=1.0, min_weight=0.1), -2.0, [3, 1, 0, 2, 5]),  # the delimiter has the mean
        (Grail(std=0.0), -2.0, [1, 1, 0, 1, 5]),  # not GRPO
        (Grail(strength=0.5), -2.0, [1.25, 0.75, 0, 1, 3]),
    ],
)
def test_worked_by_hand(method, advantage, expected):
    credit = method(torch.tensor([advantage]), FOUR)
    numbers = torch.tensor([expected]) * advantage
    torch.testing.assert_close(credit.advantage, numbers, atol=1e-6, rtol=1e-6)
    assert credit.segment_id.tolist() == [[0, 1, -1, 2, 3]]


def test_a_token_behind_the_box_widens_the_deviation():
    """Its saliency is 0, so a = log(1e-8) = -18.42."""
    signals = completions([[0, 0, 2, 1, 2]], [[4, 2, 2, 4, -math.inf]])
    a = [4.0, 2.0, 2.0, 4.0, math.log(1e-8)]
    mean = sum(a) / 5
    deviation = math.sqrt(sum((x - mean) ** 2 for x in a) / 5)
    expected = [1 + 0.5 * (4 - mean) / deviation, 1 + 0.5 * (2 - mean) / deviation, 1, 5, 1]
    assert expected[:2] == pytest.approx([1.3067, 1.1906], abs=1e-4)
    credit = Grail()(torch.tensor([-1.0]), signals)
    torch.testing.assert_close(credit.advantage, -torch.tensor([expected]), atol=1e-6, rtol=1e-6)
