"""OPSD (arXiv:2601.18734) and SDPO (arXiv:2601.20802): how much is distilled where, and the term of the loss."""

import pytest
import torch

from gear_rl.methods import Opsd, Sdpo
from gear_rl.traits import Distillation
from gear_rl.types import TokenSignals

MASK = torch.tensor([[True, False, True], [True, True, False], [False, False, False]])
A = torch.tensor([2.0, -1.0, 3.0])

both = pytest.mark.parametrize("cls", [Opsd, Sdpo])
"""SDPO differs from OPSD in the term alone."""


@both
@pytest.mark.parametrize(
    ("strength", "advantage", "weight"),
    [
        # all of it is distilled, nothing of the advantage is left
        (1.0, [[0, 0, 0], [0, 0, 0], [0, 0, 0]], [[1, 0, 1], [1, 1, 0], [0, 0, 0]]),
        # 3/4 of A: 1.5 and -0.75
        (0.25, [[1.5, 0, 1.5], [-0.75, -0.75, 0], [0, 0, 0]], [[0.25, 0, 0.25], [0.25, 0.25, 0], [0, 0, 0]]),
    ],
)
def test_worked_by_hand(cls, strength, advantage, weight):
    credit = cls(strength=strength)(A, TokenSignals(mask=MASK))
    assert credit.advantage.tolist() == advantage
    assert credit.distill_weight.tolist() == weight
    assert credit.segment_id.tolist() == [[0, -1, 0], [0, 0, -1], [-1, -1, -1]]


@pytest.mark.parametrize(
    ("method", "term"),
    [
        (Opsd(), Distillation(beta=0.5, temperature=1.1, top_k=None, tail=False)),
        (Sdpo(), Distillation(beta=0.5, top_k=100, top_k_of="student", tail=True, ratio_clip=2.0)),
    ],
)
def test_the_term_of_the_loss(method, term):
    """Released OPSD and its option; released SDPO, the paper's formula and its option."""
    assert method.distillation == term
