"""RLCSD (arXiv:2606.11709) and CEPO (arXiv:2605.19436), contrasts of a right and a wrong hint, by hand."""

import dataclasses
import math

import pytest
import torch

from gear_rl.methods import Rlcsd, Rlsd
from gear_rl.signals.passes import contrasted
from gear_rl.types import TokenSignals
from methods.completions import completion


def contrast(*e):
    """One completion with these differences of log T+ and log T-, from the engine's own contrast."""
    student = [-2.0] * len(e)
    right, wrong = [-3.0 + x for x in e], [-3.0] * len(e)
    return contrasted(completion(student=student, teacher=right), completion(student=student, teacher=wrong))


LN3 = math.log(3)
# tanh(ln 3 / 2) = (3 - 1) / (3 + 1) = 1/2, and tanh(ln 3) = (9 - 1) / (9 + 1) = 4/5
FIVE = contrast(0.0, LN3 / 2, -LN3 / 2, LN3, -LN3)
NATS = Rlcsd(squash_nats=1.0, paths="one")
"""Bonus 0, 1/4, -1/4, 2/5, -2/5 with strength 1/2."""


@pytest.mark.parametrize(
    ("method", "advantage", "expected"),
    [
        (NATS, 1.0, [1, 1.25, 0.75, 1.4, 0.6]),
        # what the right hint makes likelier is blamed less in a bad completion
        (NATS, -1.0, [-1, -0.75, -1.25, -0.6, -1.4]),
        # the sign stays: 0.3 - 0.4 and -0.3 + 0.4 are 0
        (NATS, 0.3, [0.3, 0.55, 0.05, 0.7, 0.0]),
        (NATS, -0.3, [-0.3, -0.05, -0.55, 0.0, -0.7]),
        (NATS, 0.0, [0, 0, 0, 0, 0]),
        (dataclasses.replace(NATS, strength=2.0), 2.0, [2, 3, 1, 3.6, 0.4]),
        # 1/4 and less is left out
        (dataclasses.replace(NATS, threshold=0.26), 1.0, [1, 1, 1, 1.4, 0.6]),
        # the means: one token of five unmodulated, four modulated
        (dataclasses.replace(NATS, paths="completion"), 1.0, [5, 1.25 * 1.25, 0.75 * 1.25, 1.75, 0.75]),
        (
            dataclasses.replace(NATS, paths="completion", modulated_share=0.4),
            1.0,
            [5, 1.25 / 2, 0.75 / 2, 0.7, 0.3],
        ),
        # all modulated (and so of factor 1) with threshold 0 but for the token of contrast 0
        (dataclasses.replace(NATS, paths="completion", threshold=0.5), 1.0, [1, 1, 1, 1, 1]),
        # the released 0.02 nats: tanh(27) is 1 in float32
        (Rlcsd(paths="one"), 1.0, [1, 1.5, 0.5, 1.5, 0.5]),
    ],
)
def test_worked_by_hand(method, advantage, expected):
    credit = method(torch.tensor([advantage]), FIVE)
    torch.testing.assert_close(credit.advantage, torch.tensor([expected]).float(), atol=1e-5, rtol=0)
    assert credit.segment_id.tolist() == [[0, 1, 2, 3, 4]]


BATCH = TokenSignals(
    mask=torch.tensor([[True, False, True, True], [True, True, True, False], [False] * 4]),
    student_logprob=torch.zeros(3, 4),
    teacher_logprob=torch.tensor([[LN3, 9.0, 0.0, 0.0], [-LN3, LN3, 0.0, 9.0], [9.0, 9.0, 9.0, 9.0]]),
)
"""Three trained tokens each: one modulated in the first (+ 2/5), two in the second (- 2/5, + 2/5). Then none."""


def test_the_default_is_the_papers():
    """tanh(x / 0.02) is 1, and so r 1/2; means over the batch: six tokens, three of each kind."""
    credit = Rlcsd()(torch.tensor([1.0, -1.0, 5.0]), BATCH)
    expected = torch.tensor([[3.0, 0, 2, 2], [-3, -1, -2, 0], [0, 0, 0, 0]])
    torch.testing.assert_close(credit.advantage, expected)


def test_over_the_batch_a_token_mean_is_the_papers_two_means():
    """mean(others) + eta mean(modulated) of any per-token gradient, here a random one."""
    gradient = torch.rand(3, 4, generator=torch.Generator().manual_seed(0))
    advantage_B = torch.tensor([1.0, -1.0, 5.0])
    plain = NATS(advantage_B, BATCH).advantage
    modulated = torch.tensor([[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 0, 0]]).bool()
    others = BATCH.mask & ~modulated
    for eta in (0.0, 0.3, 1.0):
        method = dataclasses.replace(NATS, paths="batch", modulated_share=eta)
        found = (method(advantage_B, BATCH).advantage * gradient)[BATCH.mask].mean()
        means = [(plain * gradient)[kind].mean() for kind in (others, modulated)]
        torch.testing.assert_close(found, means[0] + eta * means[1])


# CEPO is RLSD with a contrast


CEPO = Rlsd(clip_width=0.5, decay_steps=25)


@pytest.mark.parametrize(
    ("advantage", "expected"),
    [
        # T+ over T- is 1, 1.2, 5/6, 4 and 1/4; w = 1, 1.2, 5/6, 3/2, 1/2; A (1/2 + 1/2 w)
        (2.0, [2.0, 2.2, 11 / 6, 2.5, 1.5]),
        # the sign turns the ratio over: 1, 5/6, 1.2, 1/2, 3/2
        (-2.0, [-2.0, -11 / 6, -2.2, -1.5, -2.5]),
    ],
)
def test_cepo_is_rlsd_with_a_contrast(advantage, expected):
    signals = contrast(*(math.log(r) for r in (1, 1.2, 5 / 6, 4, 1 / 4)))
    credit = CEPO(torch.tensor([advantage]), signals)
    torch.testing.assert_close(credit.advantage, torch.tensor([expected]), atol=1e-5, rtol=0)
