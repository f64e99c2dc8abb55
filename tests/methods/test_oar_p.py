"""OAR-P: numbers worked by hand from the bi-level rule of arXiv:2601.07408, and a loop over the whole method."""

import dataclasses
import math

import pytest
import torch

from gear_rl.methods import Gear, OarG, OarP
from gear_rl.signals.signal import names_of
from gear_rl.types import TokenSignals

NAN = math.nan


def completions(region, occlusion):
    """Rows of regions and saliencies; -1 is masked."""
    region = torch.tensor(region)
    return TokenSignals(
        mask=region >= 0, answer_region=region, answer_occlusion=torch.tensor(occlusion, dtype=torch.float32)
    )


FIVE = completions([[0, 0, -1, 0, 0, 0, 2, 1, 1, 2]], [[0, 1, NAN, 1, 3, 1023, 9, 9, 9, 9]])
"""Before the answer 2^k - 1 with k = 0, 1, 1, 2, 10: n = 0, 1/10, 1/10, 2/10, 1."""


def spread(*weights):
    """The five weights before the answer on their places, 1 on the answer and its surroundings."""
    a, b, c, d, e = weights
    return [a, b, 0.0, c, d, e, 1.0, 1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        # q is the second of the five, 1/10: 0.1, 1, 1, 1 + (1/10) / (9/10), 2; their sum is 469/90, to be 5.
        (OarP(), [w * 450 / 469 for w in (0.1, 1, 1, 10 / 9, 2)]),
        (OarP(keep_mass=False), [0.1, 1, 1, 10 / 9, 2]),
        # Half of the advantage stays: (1 + w) / 2.
        (OarP(keep_mass=False, strength=0.5), [0.55, 1, 1, 19 / 18, 1.5]),
        # 0.8 * 4 = 3.2, so q = 0.2 + 0.2 * 0.8 = 9/25: (1/10) / q = 5/18, (2/10) / q = 5/9, and 1 + 2.
        (OarP(keep_mass=False, threshold=0.8, boost=2.0), [0.1, 5 / 18, 5 / 18, 5 / 9, 3]),
        # sorted[floor(0.8 * 5)] is the last: all others are held.
        (OarP(keep_mass=False, threshold=0.8, quantile_rule="floor"), [0.1, 0.1, 0.1, 0.2, 1]),
        (OarP(keep_mass=False, min_weight=0.9), [0.9, 1, 1, 10 / 9, 2]),
    ],
)
@pytest.mark.parametrize("advantage", [2.0, -3.0, 0.0])
def test_worked_by_hand(method, expected, advantage):
    credit = method(torch.tensor([advantage]), FIVE)
    numbers = torch.tensor([spread(*expected)]) * advantage
    torch.testing.assert_close(credit.advantage, numbers, atol=1e-5, rtol=1e-5)
    assert credit.segment_id.tolist() == [[0, 1, -1, 2, 3, 4, 5, 6, 7, 8]]


def test_without_an_answer_it_is_grpo():
    none = completions([[0, 0, 0, -1], [0, 0, 2, 2], [-1, -1, -1, -1], [1, 2, 2, 2]], [[0, 3, 7, 9]] * 4)
    credit = OarP()(torch.tensor([1.5, -2.0, 3.0, 4.0]), none)
    expected = [[1.5, 1.5, 1.5, 0.0], [-2.0] * 4, [0.0] * 4, [4.0] * 4]
    assert credit.advantage.tolist() == expected


def slow(method, advantage, mask, region, saliency):
    """The advantage of each token of one row, from the published rule."""
    out = [advantage if m else 0.0 for m in mask]
    before = [t for t, m in enumerate(mask) if m and region[t] == 0]
    if not any(m and r == 1 for m, r in zip(mask, region, strict=True)) or not before:
        return out
    levels = [math.log1p(max(saliency[t], 0.0)) for t in before]
    n = [(x - min(levels)) / ((max(levels) - min(levels)) or 1.0) for x in levels]
    ordered = sorted(n)
    if method.quantile_rule == "floor":
        q = ordered[min(math.floor(method.threshold * len(n) + 1e-9), len(n) - 1)]
    else:
        place = method.threshold * (len(n) - 1)
        low = math.floor(place)
        q = ordered[low] + (ordered[math.ceil(place)] - ordered[low]) * (place - low)
    w = [
        max(x / (q + 1e-8), method.min_weight) if x < q else 1 + method.boost * (x - q) / (1 - q + 1e-8)
        for x in n
    ]
    if method.keep_mass:
        w = [x * len(w) / (sum(w) + 1e-8) for x in w]
    for t, x in zip(before, w, strict=True):
        out[t] = advantage * ((1 - method.strength) + method.strength * x)
    return out


def random_rows(g, num_rows=6, num_tokens=15):
    """Answers in some rows, tool output anywhere, saliencies over several orders, NaN under the mask."""
    mask = torch.rand(num_rows, num_tokens, generator=g) < 0.8
    cut = torch.randint(0, num_tokens, (num_rows, 2), generator=g).sort(-1).values
    place = torch.arange(num_tokens)
    region = torch.where(place < cut[:, :1], 0, torch.where(place <= cut[:, 1:], 1, 2))
    region[::3] = 0
    saliency = (torch.randn(num_rows, num_tokens, generator=g) * 2).exp()
    saliency[1] = saliency[1].round()
    return mask, torch.where(mask, region, -1), torch.where(mask, saliency, NAN)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("cls", [OarP, OarG])
def test_agrees_with_the_loop(cls, seed):
    g = torch.Generator().manual_seed(seed)
    mask, region, saliency = random_rows(g)
    method = cls(
        strength=[1.0, 0.3][seed % 2],
        threshold=[0.25, 0.4, 0.7][seed % 3],
        boost=[1.0, 2.0][seed // 2 % 2],
        quantile_rule=["linear", "floor"][seed // 4 % 2],
        keep_mass=seed % 5 != 0,
    )
    signals = TokenSignals(mask=mask, answer_region=region, **{names_of(method.needs)[0]: saliency})
    advantage_B = torch.randn(6, generator=g)
    rows = zip(advantage_B.tolist(), mask.tolist(), region.tolist(), saliency.tolist(), strict=True)
    expected = torch.tensor([slow(method, *row) for row in rows])
    torch.testing.assert_close(method(advantage_B, signals).advantage, expected, atol=2e-5, rtol=2e-5)


def test_the_defaults_are_the_authors_readmes():
    assert dataclasses.asdict(OarP()) == {
        "strength": 1.0,
        "threshold": 0.25,
        "boost": 1.0,
        "quantile_rule": "linear",
        "min_weight": 0.1,
        "keep_mass": True,
        "readout": "mean",
    }
    assert OarP() != Gear()
