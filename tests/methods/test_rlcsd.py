"""RLCSD (arXiv:2606.11709), a contrast of a right and a wrong hint, by hand."""

import dataclasses
import math

import pytest
import torch

from gear_rl.methods import Rlcsd
from gear_rl.signals.passes import contrast_signals
from gear_rl.types import TokenSignals
from methods.completions import completion


def contrast(*e):
    """One completion with these differences of log T+ and log T-, from the engine's own contrast."""
    student = [-2.0] * len(e)
    right, wrong = [-3.0 + x for x in e], [-3.0] * len(e)
    return contrast_signals(
        completion(student=student, teacher=right), completion(student=student, teacher=wrong)
    )


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
        # 1/4 and less is left out
        (dataclasses.replace(NATS, threshold=0.26), 1.0, [1, 1, 1, 1.4, 0.6]),
        # the means: one token of five unmodulated, four modulated
        (dataclasses.replace(NATS, paths="completion"), 1.0, [5, 1.25 * 1.25, 0.75 * 1.25, 1.75, 0.75]),
        (
            dataclasses.replace(NATS, paths="completion", modulated_share=0.4),
            1.0,
            [5, 1.25 / 2, 0.75 / 2, 0.7, 0.3],
        ),
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


def test_a_completion_without_advantage_is_not_counted():
    """It is not scored, so none of its tokens is modulated."""
    alone = Rlcsd()(torch.tensor([1.0, -1.0, 5.0]), BATCH).advantage
    mask = torch.cat([BATCH.mask, torch.ones(2, 4, dtype=torch.bool)])
    logprob = {name: torch.cat([BATCH.get(name), torch.zeros(2, 4)]) for name in BATCH.values}
    beside = Rlcsd()(torch.tensor([1.0, -1.0, 5.0, 0.0, 0.0]), TokenSignals(mask=mask, values=logprob))
    assert torch.equal(beside.advantage[:3], alone) and not beside.advantage[3:].any()
