"""GRPO: the completion's advantage on every trained token."""

import torch

from gear_rl.methods import Uniform
from gear_rl.types import TokenSignals


def test_every_trained_token_carries_the_advantage():
    mask = torch.tensor([[True, False, True], [True, True, False], [False, False, False]])
    credit = Uniform()(torch.tensor([2.0, -0.5, 3.0]), TokenSignals(mask=mask))
    assert credit.advantage.tolist() == [[2.0, 0.0, 2.0], [-0.5, -0.5, 0.0], [0.0, 0.0, 0.0]]
    assert credit.segment_id.tolist() == [[0, -1, 0], [0, 0, -1], [-1, -1, -1]]
    assert credit.distill_weight is None


def test_needs_no_signal():
    assert Uniform().needs == ()
