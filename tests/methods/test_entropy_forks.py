"""80/20: numbers worked by hand from the quantile rule of arXiv:2506.01939, of its code and of TRL."""

import pytest
import torch

from gear_rl.methods import EntropyForks
from gear_rl.types import TokenSignals
from methods.completions import completion

SIX = [0.1, 2.0, 0.3, 0.0, 1.5, 0.2]
"""Sorted 0, 0.1, 0.2, 0.3, 1.5, 2. The 0.8 quantile stands at place 5 * 0.8 = 4 of these: on 1.5."""
TIED = [1.0, 3.0, 1.0, 0.0, 1.0]
"""Sorted 0, 1, 1, 1, 3. Place 4 * 0.6 = 2.4 lies between two ones."""


@pytest.mark.parametrize(
    ("method", "entropy", "weight"),
    [
        (EntropyForks(), SIX, [0, 1, 0, 0, 1, 0]),
        (EntropyForks(top_share=0.19), SIX, [0, 1, 0, 0, 0, 0]),
        # ceil(6 * 0.5) = 3, ceil(6 / 1e6) = 1
        (EntropyForks(selection="count", top_share=0.5), SIX, [0, 1, 1, 0, 1, 0]),
        (EntropyForks(selection="count", top_share=1e-6), SIX, [0, 1, 0, 0, 0, 0]),
        (EntropyForks(selection="count", top_share=0.35), SIX, [0, 1, 1, 0, 1, 0]),
        # ties: the quantile keeps all, the count ceil(5 * 0.4) = 2, the earliest of the tied
        (EntropyForks(top_share=0.4), TIED, [1, 1, 1, 0, 1]),
        (EntropyForks(selection="count", top_share=0.4), TIED, [1, 1, 0, 0, 0]),
        (EntropyForks(selection="count"), [0.7, 0.7, 0.7], [1, 0, 0]),
        # the mean made 1: two of six tokens share the whole
        (EntropyForks(renormalise="mean"), SIX, [0, 3, 0, 0, 3, 0]),
    ],
)
@pytest.mark.parametrize("advantage", [2.0, -0.5])
def test_worked_by_hand(method, entropy, weight, advantage):
    credit = method(torch.tensor([advantage]), completion(entropy=entropy))
    assert credit.advantage[0].tolist() == pytest.approx([advantage * w for w in weight])
    assert credit.segment_id.tolist() == [list(range(len(entropy)))]


BATCH = TokenSignals(
    mask=torch.tensor([[True, True, True, False], [True, False, True, True], [True, True, True, True]]),
    student_entropy=torch.tensor([[0.1, 0.9, 0.2, 9.0], [2.0, 9.0, 3.0, 1.0], [8.0, 8.0, 8.0, 8.0]]),
)
"""Trained tokens of the first two: 0.1, 0.9, 0.2 and 2, 3, 1. The third has no advantage; 9 is tool output."""
BATCH_ADVANTAGE = torch.tensor([1.0, -1.0, 0.0])


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        # each its own: place 2 * 0.8 = 1.6 of 0.1, 0.2, 0.9 is 0.62, of 1, 2, 3 it is 2.6
        (EntropyForks(scope="completion"), [[0, 1, 0, 0], [0, 0, -1, 0]]),
        # the published default: place 5 * 0.8 = 4 of 0.1, 0.2, 0.9, 1, 2, 3 is 2
        (EntropyForks(), [[0, 0, 0, 0], [-1, 0, -1, 0]]),
        # ceil(6 * 0.5) = 3; and all six tokens' weight on them
        (EntropyForks(top_share=0.5, selection="count"), [[0, 0, 0, 0], [-1, 0, -1, -1]]),
        (EntropyForks(renormalise="mean"), [[0, 0, 0, 0], [-3, 0, -3, 0]]),
    ],
)
def test_one_quantile_for_each_or_for_all(method, expected):
    credit = method(BATCH_ADVANTAGE, BATCH)
    torch.testing.assert_close(credit.advantage, torch.tensor([*expected, [0, 0, 0, 0]]).float())
    assert credit.segment_id.tolist() == [[0, 1, 2, -1], [0, -1, 1, 2], [0, 1, 2, 3]]
