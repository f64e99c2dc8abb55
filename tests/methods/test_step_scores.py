"""Scores of steps: numbers worked by hand from the formulas."""

import math

import pytest
import torch

from gear_rl.errors import warn_once
from gear_rl.methods import StepScores
from gear_rl.types import TokenSignals
from methods.completions import close

# Two rollouts of a group: three steps and a token outside of them, then two steps, the second over tool output.
MASK = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 1, 0]]).bool()
STEP = torch.tensor([[0, 0, 1, -1, 2], [0, 1, -1, 1, -1]])
SCORE = torch.tensor([[1.0, 1.0, 0.0, 9.0, 0.5], [0.5, 0.75, math.nan, 0.75, 0.0]])
TWO = TokenSignals(mask=MASK, step_id=STEP, step_score=SCORE, group_B=torch.tensor([4, 4]))
BASE = torch.tensor([1.0, -1.0])
# The whole returns 1.5 and 1.25 differ by .125 from their mean: their deviation is .125 sqrt 2, plus 1e-4.
MOST = 0.125 * math.sqrt(2)
UNIT = 1 / (MOST + 1e-4)


def rewarded(**settings):
    return StepScores(steps="separator", **settings)(BASE, TWO)


@pytest.mark.parametrize(
    ("discount", "first", "second"),
    [
        (1.0, 0.125, -0.125),  # returns 1.5 and 1.25, then .5 and .75; no sibling has a third step
        (0.5, 0.125, -MOST),  # 1.125 and .875, then .25 and .75: .25 from their mean, which is too much
        (0.0, MOST, -MOST),  # 1 and .5, then 0 and .75
    ],
)
def test_returns_to_go_by_hand(discount, first, second):
    a, b = first * UNIT, second * UNIT
    credit = rewarded(discount=discount)
    close(credit.advantage, torch.tensor([[1 + a, 1 + a, 1 + b, 1, 1], [-1 - a, -1 - b, 0, -1 - b, 0]]))
    assert credit.segment_id.tolist() == [[0, 0, 1, 2, 3], [0, 1, -1, 2, -1]]
    alone = rewarded(discount=discount, outcome=False, strength=0.5).advantage
    close(alone, torch.tensor([[a / 2, a / 2, b / 2, 1, 0], [-a / 2, -b / 2, 0, -b / 2, 0]]))


# The five rewards 1, 0, .5, .5, .75 have the mean .55 and squares .2025 + .3025 + .0025 + .0025 + .04 = .55,
# so the deviation sqrt(.55 / 4) = .3708099, plus 1e-4.
POOLED = 1 / 0.3709099
R = [0.45 * POOLED, -0.55 * POOLED, -0.05 * POOLED, -0.05 * POOLED, 0.2 * POOLED]


def test_process_supervision_by_hand():
    to_go = [R[0] + R[1] + R[2], R[1] + R[2], R[2]], [R[3] + R[4], R[4]]
    (a, b, c), (d, e) = to_go
    credit = rewarded(use="process_supervision")
    close(credit.advantage, torch.tensor([[1 + a, 1 + a, 1 + b, 1, 1 + c], [d - 1, e - 1, 0, e - 1, 0]]))
    own = rewarded(use="process_supervision", outcome=False, discount=0.0).advantage
    close(own, torch.tensor([[R[0], R[0], R[1], 1, R[2]], [R[3], R[4], 0, R[4], 0]]))


def test_process_supervision_warns_that_the_number_of_steps_counts(caplog):
    warn_once.cache_clear()
    for _ in range(2):
        StepScores(use="process_supervision")
    assert caplog.text.count("of two equal returns the one in more steps gets less") == 1


def test_weights_by_hand():
    """Of four covered tokens 1, 1, 0, .5: mean .625; of a failure's three 1 - .5, 1 - .75 twice: mean 1/3."""
    credit = rewarded(use="weights")
    close(credit.advantage, torch.tensor([[1.6, 1.6, 0, 1, 0.8], [-1.5, -0.75, 0, -0.75, 0]]))
    half = rewarded(use="weights", strength=0.5)
    close(half.advantage, torch.tensor([[1.3, 1.3, 0.5, 1, 0.9], [-1.25, -0.875, 0, -0.875, 0]]))


def test_scores_of_nothing_leave_the_advantage():
    none = TokenSignals(mask=MASK, step_id=STEP, step_score=torch.zeros(2, 5), group_B=torch.tensor([4, 4]))
    plain = torch.where(MASK, BASE[:, None], 0.0)
    for use in ("rewards", "process_supervision", "weights"):
        close(StepScores(steps="tokens", use=use)(BASE, none).advantage, plain)


def test_weights_of_a_score_outside_0_and_1_are_refused():
    with pytest.raises(ValueError, match=r"step_scores: a score of 1.5; use=weights takes 0 to 1"):
        rewarded_with = TokenSignals(mask=MASK, step_id=STEP, step_score=torch.where(STEP == 1, 1.5, 0.5))
        StepScores(use="weights", steps="tokens")(BASE, rewarded_with)
