"""SHEAR: numbers worked by hand from the formula of arXiv:2604.23318."""

import pytest
import torch

from gear_rl.methods import Shear, Uniform
from gear_rl.types import TokenSignals


def test_worked_by_hand():
    """A (1/2 + d/2): the weights are 0.75, 1.25, 1, 0.6."""
    signals = TokenSignals(
        mask=torch.ones(1, 4, dtype=torch.bool), transport_distance=torch.tensor([[0.5, 1.5, 1.0, 0.2]])
    )
    credit = Shear(strength=0.5)(torch.tensor([2.0]), signals)
    torch.testing.assert_close(credit.advantage, torch.tensor([[1.5, 2.5, 2.0, 1.2]]), atol=1e-6, rtol=0)
    assert credit.segment_id.tolist() == [[0, 1, 2, 3]]


@pytest.mark.parametrize("normalise", ["none", "mean"])
@pytest.mark.parametrize("strength", [1.0, 0.3])
def test_what_was_compared_with_nothing_keeps_its_advantage(normalise, strength):
    signals = TokenSignals(
        mask=torch.tensor([[True, True, False], [True, True, True], [False, False, False]]),
        transport_distance=torch.tensor([[0.0, 0.0, 7.0], [0.0, 0.5, 1.0], [0.0, 0.0, 0.0]]),
    )
    credit = Shear(normalise=normalise, strength=strength)(torch.tensor([0.7, 1.0, 1.0]), signals)
    grpo = Uniform()(torch.tensor([0.7, 1.0, 1.0]), signals)
    torch.testing.assert_close(credit.advantage[[0, 2]], grpo.advantage[[0, 2]])
    # A single distance of 0 among others is one: with nothing of GRPO left, no credit.
    assert credit.advantage[1, 0].item() == pytest.approx(1 - strength)
