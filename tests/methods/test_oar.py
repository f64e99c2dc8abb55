"""OAR-P and OAR-G: numbers worked by hand from arXiv:2601.07408; the loop of the weights is in test_bilevel."""

import math

import pytest
import torch

from gear_rl.methods import OarG, OarP
from gear_rl.signals.signal import names_of
from gear_rl.types import TokenSignals

SIGNALS = ("answer_occlusion", "answer_gradient")


def completions(signal, region, saliency):
    """Rows of regions and of one signal; the other is NaN. -1 is masked."""
    region = torch.tensor(region)
    values = dict.fromkeys(SIGNALS, torch.full(region.shape, math.nan)) | {signal: torch.tensor(saliency)}
    return TokenSignals(mask=region >= 0, answer_region=region, **values)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        # q is the second of the five, 1/10: 0.1, 1, 1, 1 + (1/10) / (9/10), 2
        ({}, [0.1, 1, 1, 10 / 9, 2]),
        # 0.8 * 4 = 3.2, so q = 0.2 + 0.2 * 0.8 = 9/25: (1/10) / q = 5/18, (2/10) / q = 5/9, and 1 + 2.
        ({"threshold": 0.8, "boost": 2.0}, [0.1, 5 / 18, 5 / 18, 5 / 9, 3]),
        ({"min_weight": 0.9}, [0.9, 1, 1, 10 / 9, 2]),
    ],
)
@pytest.mark.parametrize("cls", [OarP, OarG])
@pytest.mark.parametrize("advantage", [2.0, -3.0])
def test_worked_by_hand(cls, settings, expected, advantage):
    """Before the answer 2^k - 1 with k = 0, 1, 1, 2, 10: n = 0, 1/10, 1/10, 2/10, 1. The sum is scaled to 5."""
    method = cls(**settings)
    region = [[0, 0, -1, 0, 0, 0, 2, 1, 1, 2]]
    saliency = [[0.0, 1.0, math.nan, 1.0, 3.0, 1023.0, 9.0, 9.0, 9.0, 9.0]]
    signals = completions(names_of(method.needs)[0], region, saliency)
    credit = method(torch.tensor([advantage]), signals)
    expected = [w * 5 / sum(expected) for w in expected]
    weight = [*expected[:2], 0.0, *expected[2:], 1.0, 1.0, 1.0, 1.0]
    numbers = torch.tensor([weight]) * advantage
    torch.testing.assert_close(credit.advantage, numbers, atol=1e-5, rtol=1e-5)
    assert credit.segment_id.tolist() == [[0, 1, -1, 2, 3, 4, 5, 6, 7, 8]]


@pytest.mark.parametrize(("cls", "signal"), [(OarP, SIGNALS[0]), (OarG, SIGNALS[1])])
def test_without_an_answer_it_is_grpo(cls, signal):
    assert names_of(cls().needs) == (signal, "answer_region")
    region = [[0, 0, 0, -1], [0, 0, 2, 2], [-1, -1, -1, -1], [1, 2, 2, 2]]
    credit = cls()(torch.tensor([1.5, -2.0, 3.0, 4.0]), completions(signal, region, [[0.0, 3, 7, 9]] * 4))
    expected = [[1.5, 1.5, 1.5, 0.0], [-2.0] * 4, [0.0] * 4, [4.0] * 4]
    assert credit.advantage.tolist() == expected
