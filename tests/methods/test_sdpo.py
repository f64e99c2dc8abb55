"""SDPO (arXiv:2601.20802): its term; what it gives to which token is tested with OPSD's (test_opsd.py)."""

import math

import pytest
import torch

from gear_rl.methods import Sdpo
from gear_rl.tensor.distill import distillation_terms
from gear_rl.tensor.logits import Head
from gear_rl.traits import Distillation


def test_the_released_term():
    expected = Distillation(
        beta=0.5, top_k=100, top_k_of="student", tail=True, ratio_clip=2.0, temperature=1.0
    )
    assert Sdpo().distillation == expected


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        # The student's first token and the rest: p' = (1/2, 1/2), q' = (1/8, 7/8), m = (5/16, 11/16)
        (
            {},
            (math.log(8 / 5) / 2 + math.log(8 / 11) / 2 + math.log(2 / 5) / 8 + math.log(14 / 11) * 7 / 8)
            / 2,
        ),
        # The teacher's last token and the rest: p' = (1/8, 7/8), q' = (5/8, 3/8), m = (3/8, 5/8)
        (
            {"top_k_of": "teacher"},
            (
                math.log(1 / 3) / 8
                + math.log(7 / 5) * 7 / 8
                + math.log(5 / 3) * 5 / 8
                + math.log(3 / 5) * 3 / 8
            )
            / 2,
        ),
    ],
    ids=["released", "teacher"],
)
def test_whose_top_k_by_hand(settings, expected):
    """p = (1/2, 1/4, 1/8, 1/8), q = (1/8, 1/8, 1/8, 5/8)."""
    found = term_of(Sdpo(top_k=1, **settings), [1 / 2, 1 / 4, 1 / 8, 1 / 8], [1 / 8, 1 / 8, 1 / 8, 5 / 8])
    assert found == pytest.approx(expected, abs=1e-6)


def term_of(method, p, q):
    term = method.distillation
    found, _ = distillation_terms(
        torch.tensor([p]).log(),
        torch.tensor([q]).log(),
        torch.tensor([0]),
        Head(weight_VD=torch.eye(4)),
        beta=term.beta,
        top_k=term.top_k,
        top_k_of=term.top_k_of,
        tail=term.tail,
        temperature=term.temperature,
        max_nats=term.max_nats,
    )
    return found.item()
