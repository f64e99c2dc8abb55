"""OAR-G: its own signal, the same reshaping as OAR-P, and GRAIL's settings of it. The loop is in test_oar_p."""

import dataclasses

import pytest
import torch

from gear_rl.methods import OarG, OarP
from gear_rl.signals.signal import names_of
from gear_rl.types import TokenSignals


def completion(region, gradient):
    region = torch.tensor([region])
    return TokenSignals(mask=region >= 0, answer_region=region, answer_gradient=torch.tensor([gradient]))


FIVE = completion([0, 0, -1, 0, 0, 0, 2, 1], [0.0, 1.0, 7.0, 1.0, 3.0, 1023.0, 5.0, 5.0])
"""Before the answer 2^k - 1 with k = 0, 1, 1, 2, 10: n = 0, 1/10, 1/10, 2/10, 1."""


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        # q = 1/10: 0.1, 1, 1, 1 + (1/10) / (9/10), 2
        (OarG(keep_mass=False), [0.1, 1, 0, 1, 10 / 9, 2, 1, 1]),
        # As in GRAIL's code: sorted[floor(0.4 * 5)] = 1/10; twice the lift: 11/9 and 3
        (
            OarG(keep_mass=False, threshold=0.4, boost=2.0, quantile_rule="floor"),
            [0.1, 1, 0, 1, 11 / 9, 3, 1, 1],
        ),
        # As in CRPO's: 0.7 * 4 = 2.8, q = 0.1 + 0.1 * 0.8 = 9/50; (1/10) / q = 5/9; 1 + (1/50) / (41/50) = 42/41
        (OarG(keep_mass=False, threshold=0.7), [0.1, 5 / 9, 0, 5 / 9, 42 / 41, 2, 1, 1]),
    ],
)
@pytest.mark.parametrize("advantage", [2.0, -3.0])
def test_worked_by_hand(method, expected, advantage):
    credit = method(torch.tensor([advantage]), FIVE)
    numbers = torch.tensor([expected]) * advantage
    torch.testing.assert_close(credit.advantage, numbers, atol=1e-5, rtol=1e-5)
    assert credit.segment_id.tolist() == [[0, 1, -1, 2, 3, 4, 5, 6]]


def test_it_reads_the_gradient_and_nothing_of_oar_p():
    assert names_of(OarG().needs) == ("answer_gradient", "answer_region")
    assert OarG(strength=0.0).needs == ()
    both = dataclasses.replace(FIVE, answer_occlusion=FIVE.answer_gradient)
    other = dataclasses.replace(FIVE, answer_occlusion=FIVE.answer_gradient.flip(-1))
    advantage_B = torch.tensor([1.0])
    assert torch.equal(OarG()(advantage_B, other).advantage, OarP()(advantage_B, both).advantage)
    assert not torch.equal(OarG()(advantage_B, other).advantage, OarP()(advantage_B, other).advantage)
