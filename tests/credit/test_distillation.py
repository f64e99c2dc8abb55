"""The distillation terms' weights, by hand."""

import math

import pytest
import torch

from gear_rl.credit.distillation import anchor_penalty, importance_ratio


def test_importance_ratio_by_hand():
    old = torch.tensor([0.5, 0.5, 0.5]).log()
    found = importance_ratio(torch.tensor([0.25, 0.75, 0.9]).log(), old, clip=1.6)
    assert found.tolist() == pytest.approx([0.5, 1.5, 1.6])
    found = importance_ratio(torch.zeros(2), torch.tensor([-math.inf, math.inf]), clip=math.inf)
    assert found.tolist() == pytest.approx([math.exp(20), math.exp(-20)]), "clamped to 20 nats"


@pytest.mark.parametrize(
    ("anchor", "value", "slope"),
    [
        # of r = 2, -1 and -30; exp(20) = 4.85e8 is the most
        ("urkl", [2.0, 0.5, 450.0], [2.0, -1.0, -30.0]),
        ("rkl", [4.5, 0.0, 420.5], [3.0, 0.0, -29.0]),
        ("ufkl", [math.exp(-2) + 2, math.e - 1, math.exp(20) - 30], [1 - math.exp(-2), 1 - math.e, 1.0]),
        ("fkl", [math.exp(-2), math.e, math.exp(20)], [-math.exp(-2), -math.e, 0.0]),
        ("none", [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]),
    ],
)
def test_anchor_penalty_by_hand(anchor, value, slope):
    r = torch.tensor([2.0, -1.0, -30.0], requires_grad=True)
    found = anchor_penalty(r, anchor)
    assert found.tolist() == pytest.approx(value, rel=1e-5)
    if found.requires_grad:
        assert torch.autograd.grad(found.sum(), r)[0].tolist() == pytest.approx(slope, rel=1e-5, abs=1e-6)
