"""GRAIL: numbers worked by hand from arXiv:2606.04889 and its release, and a loop over the whole method."""

import dataclasses
import itertools
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
        (Grail(), 0.0, [0, 0, 0, 0, 0]),
        # A success keeps its advantage, but its content is overridden all the same.
        (Grail(), 2.0, [1, 1, 0, 1, 5]),
        (Grail(box="reweighted"), 2.0, [1, 1, 0, 1, 1]),
        (Grail(box="reweighted"), -2.0, [1.5, 0.5, 0, 1, 5]),
        (Grail(box="none"), 2.0, [1, 1, 0, 1, 1]),
        (Grail(box="none"), -2.0, [1.5, 0.5, 0, 0.5, 1.5]),
        (Grail(symmetry="correct"), -2.0, [1, 1, 0, 1, 5]),
        (Grail(symmetry="correct"), 2.0, [1.5, 0.5, 0, 1, 5]),
        (Grail(symmetry="both"), -2.0, [1.5, 0.5, 0, 1, 5]),
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


def test_a_token_behind_the_box_widens_the_deviation_unless_only_those_before_count():
    """Its saliency is 0, so a = log(1e-8) = -18.42."""
    signals = completions([[0, 0, 2, 1, 2]], [[4, 2, 2, 4, -math.inf]])
    a = [4.0, 2.0, 2.0, 4.0, math.log(1e-8)]
    mean = sum(a) / 5
    deviation = math.sqrt(sum((x - mean) ** 2 for x in a) / 5)
    expected = [1 + 0.5 * (4 - mean) / deviation, 1 + 0.5 * (2 - mean) / deviation, 1, 5, 1]
    assert expected[:2] == pytest.approx([1.3067, 1.1906], abs=1e-4)
    credit = Grail()(torch.tensor([-1.0]), signals)
    torch.testing.assert_close(credit.advantage, -torch.tensor([expected]), atol=1e-6, rtol=1e-6)
    # Of 4 and 2 alone the mean is 3 and the deviation 1.
    credit = Grail(among="before")(torch.tensor([-1.0]), signals)
    expected = torch.tensor([[-1.5, -0.5, -1.0, -5.0, -1.0]])
    torch.testing.assert_close(credit.advantage, expected, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("length", [1, 2, 3, 7, 29])
def test_a_flat_saliency_has_weight_one(length):
    """Also where the mean of equal numbers is rounded: the deviation that divides is 1e-4."""
    region = torch.tensor([[0] * length + [1]])
    for value in (0.0, 0.1, 3e-7, 11.3):
        signals = TokenSignals(
            mask=region >= 0, answer_region=region, answer_activation=torch.full((1, length + 1), value)
        )
        credit = Grail()(torch.tensor([-1.0]), signals)
        torch.testing.assert_close(
            credit.advantage, -torch.tensor([[1.0] * length + [5.0]]), atol=1e-6, rtol=0
        )


def slow(method, advantage, mask, region, saliency):
    """The advantage of each token of one row, in the order of the release."""
    tokens = [t for t, m in enumerate(mask) if m]
    answered = any(region[t] == 1 for t in tokens)
    meant = {"wrong": advantage <= 0, "correct": advantage > 0, "both": True}[method.symmetry]
    weights = dict.fromkeys(tokens, 1.0)
    pool = [t for t in tokens if method.among == "completion" or region[t] == 0]
    if answered and meant:
        a = {t: math.log(saliency[t] + 1e-8) for t in tokens}
        mean = sum(a[t] for t in pool) / len(pool) if pool else 0.0
        variance = sum((a[t] - mean) ** 2 for t in pool) / len(pool) if pool else 0.0
        for t in tokens:
            raw = method.mean + method.std * (a[t] - mean) / math.sqrt(variance + 1e-8)
            weights[t] = min(max(raw, method.min_weight), method.max_weight)
    if answered and (method.box == "every" or (method.box == "reweighted" and meant)):
        for t in tokens:
            if region[t] == 1:
                weights[t] = method.max_weight
            elif region[t] == 2:
                weights[t] = method.mean
    share = method.strength
    return [advantage * ((1 - share) + share * weights[t]) if m else 0.0 for t, m in enumerate(mask)]


CHOICES = list(
    itertools.product(
        ["wrong", "correct", "both"], ["every", "reweighted", "none"], ["completion", "before"], [1.0, 0.4]
    )
)


@pytest.mark.parametrize("seed", range(len(CHOICES)))
def test_agrees_with_the_loop(seed):
    g = torch.Generator().manual_seed(seed)
    mask = torch.rand(6, 15, generator=g) < 0.8
    cut = torch.randint(1, 15, (6, 2), generator=g).sort(-1).values
    place = torch.arange(15)
    region = torch.where(place < cut[:, :1], 0, torch.where(place <= cut[:, 1:], 1, 2))
    region[::3] = 0
    region = torch.where(mask, region, -1)
    saliency = torch.where(mask, (torch.randn(6, 15, generator=g) * 2).exp(), NAN)
    symmetry, box, among, strength = CHOICES[seed]
    method = Grail(
        strength=strength, symmetry=symmetry, box=box, among=among, mean=1.1, std=0.7, max_weight=3.0
    )
    advantage_B = torch.tensor([1.0, -1.0, 0.5, -0.25, 0.0, -2.0])
    signals = TokenSignals(mask=mask, answer_region=region, answer_activation=saliency)
    rows = zip(advantage_B.tolist(), mask.tolist(), region.tolist(), saliency.tolist(), strict=True)
    expected = torch.tensor([slow(method, *row) for row in rows])
    torch.testing.assert_close(method(advantage_B, signals).advantage, expected, atol=2e-5, rtol=2e-5)


def test_the_defaults_are_the_published_runs():
    assert dataclasses.asdict(Grail()) == {
        "strength": 1.0,
        "symmetry": "wrong",
        "mean": 1.0,
        "std": 0.5,
        "min_weight": 0.5,
        "max_weight": 5.0,
        "box": "every",
        "among": "completion",
        "layer": "input",
        "loss_span": "box",
    }
