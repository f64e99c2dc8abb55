"""Distilled RL: clipped ratios over their geometric mean, by hand from arXiv:2607.17247."""

import dataclasses
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gear_rl.methods import DistilledRl, Uniform
from gear_rl.types import TokenSignals
from methods.completions import PROPERTY, completion, rollouts


def from_ratios(*ratios):
    """One completion whose teacher finds each token so many times as likely as the student, who gives 1/20."""
    return completion(student=[math.log(1 / 20)] * len(ratios), teacher=[math.log(r / 20) for r in ratios])


FOUR = from_ratios(2, 8, 1 / 8, 1)
"""Clipped to 3: 2, 3, 1/3, 1, whose product is 2; the geometric mean is its fourth root."""
ROOT = 2**0.25


@pytest.mark.parametrize(
    ("method", "advantage", "weight"),
    [
        (DistilledRl(), 2.0, [2 / ROOT, 3 / ROOT, 1 / (3 * ROOT), 1 / ROOT]),
        # negative sample reset
        (DistilledRl(), -2.0, [1, 1, 1, 1]),
        (DistilledRl(), 0.0, [1, 1, 1, 1]),
        (DistilledRl(positive_only=False), -2.0, [2 / ROOT, 3 / ROOT, 1 / (3 * ROOT), 1 / ROOT]),
        (DistilledRl(normalise=False), 2.0, [2, 3, 1 / 3, 1]),
        # 2, 8, 1/8, 1 as they are: the product is 2 again
        (DistilledRl(clip_ratio=10), 2.0, [2 / ROOT, 8 / ROOT, 1 / (8 * ROOT), 1 / ROOT]),
        # 3/2, 3/2, 2/3, 1: the product is 3/2
        (DistilledRl(clip_ratio=1.5), 2.0, [1.5**0.75, 1.5**0.75, (2 / 3) * 1.5**-0.25, 1.5**-0.25]),
        (DistilledRl(clip_ratio=1.0), 2.0, [1, 1, 1, 1]),
    ],
)
def test_worked_by_hand(method, advantage, weight):
    credit = method(torch.tensor([advantage]), FOUR)
    assert credit.advantage[0].tolist() == pytest.approx([advantage * w for w in weight], rel=1e-5)
    assert credit.segment_id.tolist() == [[0, 1, 2, 3]]


def test_the_clip_comes_before_the_mean():
    """1000 and 1 clipped to 3: 3 and 1 over sqrt(3). Unclipped, the mean would be sqrt(1000)."""
    found = DistilledRl()(torch.tensor([1.0]), from_ratios(1000, 1)).advantage[0].tolist()
    assert found == pytest.approx([math.sqrt(3), 1 / math.sqrt(3)], rel=1e-5)


def test_tool_output_is_in_no_mean():
    signals = TokenSignals(
        mask=torch.tensor([[True, False, True], [False, False, False]]),
        student_logprob=torch.log(torch.tensor([[0.1, 0.1, 0.1], [0.1, 0.1, 0.1]])),
        teacher_logprob=torch.log(torch.tensor([[0.2, 0.9, 0.05], [0.2, 0.2, 0.2]])),
    )
    credit = DistilledRl()(torch.tensor([1.0, 5.0]), signals)  # ratios 2 and 1/2: their mean is 1
    torch.testing.assert_close(credit.advantage, torch.tensor([[2.0, 0.0, 0.5], [0.0, 0.0, 0.0]]))
    assert credit.segment_id.tolist() == [[0, -1, 1], [-1, -1, -1]]


def test_what_the_teacher_thinks_of_the_whole_changes_nothing():
    """Twice the ratio at every token, and none at the clip: the same weights."""
    plain, doubled = from_ratios(0.5, 1, 1.2), from_ratios(1, 2, 2.4)
    found = [DistilledRl()(torch.tensor([1.0]), signals).advantage for signals in (plain, doubled)]
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("nats", [1e4, -1e4, math.inf, -math.inf])
def test_a_log_ratio_beyond_every_exponent_is_clipped(nats):
    signals = completion(student=[-1.0, -1.0], teacher=[nats, -1.0])
    expected = 3.0 ** math.copysign(0.5, nats)
    found = DistilledRl()(torch.tensor([1.0]), signals).advantage[0].tolist()
    assert found == pytest.approx([expected, 1 / expected], rel=1e-5)


distilled = st.builds(
    DistilledRl,
    clip_ratio=st.sampled_from([1.0, 1.5, 3.0, 20.0]),
    positive_only=st.booleans(),
    normalise=st.booleans(),
)


@PROPERTY
@given(rollouts(), distilled)
def test_the_weights_multiply_to_one_and_keep_the_teachers_order(signals, method):
    method = dataclasses.replace(method, normalise=True)
    weight = method(torch.ones(3), signals).advantage
    logs = torch.where(signals.mask, weight, 1.0).log()
    torch.testing.assert_close(logs.sum(-1), torch.zeros(3), rtol=0, atol=1e-4)
    for b in range(3):
        counts = signals.mask[b]
        ratio, found = (signals.teacher_logprob - signals.student_logprob)[b][counts], weight[b][counts]
        for i in range(len(ratio)):
            assert (found[ratio > ratio[i]] >= found[i]).all()


@PROPERTY
@given(rollouts(), distilled)
def test_nothing_to_say_is_grpo_bit_for_bit(signals, method):
    advantage_B = torch.tensor([0.7, -1.3, 0.0])
    grpo = Uniform()(advantage_B, signals).advantage
    off = dataclasses.replace(method, clip_ratio=1.0)
    assert off.needs == ()
    assert torch.equal(off(advantage_B, TokenSignals(mask=signals.mask)).advantage, grpo)
    agreeing = dataclasses.replace(signals, teacher_logprob=signals.student_logprob)
    assert torch.equal(method(advantage_B, agreeing).advantage, grpo)


@pytest.mark.parametrize("clip_ratio", [0.5, 0.999, math.inf, math.nan])
def test_a_clip_that_does_not_hold_one_is_refused(clip_ratio):
    with pytest.raises(ValueError, match=f"clip_ratio: {clip_ratio} must be a finite number, 1 or more"):
        DistilledRl(clip_ratio=clip_ratio)
