"""RLSD: numbers worked by hand from the formula of arXiv:2604.03128, and the schedule of its strength."""

import dataclasses
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gear_rl.methods import Gear, Rlsd, Shuffled, Uniform
from gear_rl.traits import Scheduled
from gear_rl.types import CreditAssigner, TokenSignals
from methods.completions import PROPERTY, completion, rollouts

rlsds = st.builds(
    Rlsd,
    strength=st.sampled_from([0.0, 0.3, 0.5, 1.0]),
    clip_width=st.sampled_from([0.0, 0.2, 0.9]),
    clamp_nats=st.sampled_from([0.5, 20.0]),
    negative_only=st.booleans(),
)


def from_probabilities(student, teacher):
    """One completion, from the two probabilities of each sampled token."""
    return completion(student=[math.log(p) for p in student], teacher=[math.log(p) for p in teacher])


FOUR = from_probabilities([0.5, 0.5, 0.4, 0.8], [0.55, 0.45, 0.8, 0.2])
"""Teacher over student: 1.1 and 0.9 lie inside the clip, 2 and 1/4 outside."""


@pytest.mark.parametrize(
    ("method", "advantage", "expected"),
    [
        # 2 * (1/2 + 1/2 * w) with w = 1.1, 0.9, 1.2, 0.8
        (Rlsd(), 2.0, [2.1, 1.9, 2.2, 1.8]),
        # The sign turns the ratio over: w = 10/11, 10/9, 0.8 (from 1/2), 1.2 (from 4)
        (Rlsd(), -2.0, [-21 / 11, -19 / 9, -1.8, -2.2]),
        (Rlsd(strength=1.0), 2.0, [2.2, 1.8, 2.4, 1.6]),
        (Rlsd(strength=0.25), 2.0, [2.05, 1.95, 2.1, 1.9]),
        # A wide clip lets the third through and holds the fourth: w = 1.1, 0.9, 1.9, 0.25
        (Rlsd(clip_width=0.9), 2.0, [2.1, 1.9, 2.9, 1.25]),
        # ln 1.1 = 0.095 is below the clamp; the others become e^-0.1, e^0.1, e^-0.1
        (
            Rlsd(clamp_nats=0.1),
            2.0,
            [2.1, 1 + math.exp(-0.1), 1 + math.exp(0.1), 1 + math.exp(-0.1)],
        ),
        (Rlsd(negative_only=True), 2.0, [2.0, 2.0, 2.0, 2.0]),
        (Rlsd(negative_only=True), -2.0, [-21 / 11, -19 / 9, -1.8, -2.2]),
        (Rlsd(), 0.0, [0.0, 0.0, 0.0, 0.0]),
    ],
)
def test_worked_by_hand(method, advantage, expected):
    credit = method(torch.tensor([advantage]), FOUR)
    torch.testing.assert_close(credit.advantage, torch.tensor([expected]), atol=1e-6, rtol=0)
    assert credit.segment_id.tolist() == [[0, 1, 2, 3]]


def test_tool_output_is_passed_over():
    signals = TokenSignals(
        mask=torch.tensor([[True, False, True], [False, False, False]]),
        student_logprob=torch.tensor([[0.0, -1.0, 0.0], [0.0, 0.0, 0.0]]),
        teacher_logprob=torch.tensor([[1.0, 9.0, -1.0], [0.0, 0.0, 0.0]]),
    )
    credit = Rlsd()(torch.tensor([1.0, 5.0]), signals)
    torch.testing.assert_close(credit.advantage, torch.tensor([[1.1, 0.0, 0.9], [0.0, 0.0, 0.0]]))
    assert credit.segment_id.tolist() == [[0, -1, 1], [-1, -1, -1]]


@pytest.mark.parametrize("nats", [1e4, -1e4, 3e38, math.inf, -math.inf])
@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("strength", [1.0, 0.5])
def test_a_log_ratio_beyond_every_exponent_stays_inside_the_clip(nats, sign, strength):
    signals = completion(student=[0.0, -1.0], teacher=[nats, -1.0])
    credit = Rlsd(strength=strength)(torch.tensor([sign]), signals)
    weight = 1 + strength * 0.2 * math.copysign(1.0, nats * sign)
    torch.testing.assert_close(credit.advantage, torch.tensor([[sign * weight, sign]]))


def test_the_clamp_comes_before_the_exponential():
    """Without a clip to hide it: e^1000 is infinite, e^20 is not, and half of it is the advantage."""
    ratio = Rlsd(strength=1.0, clip_width=0.99, clamp_nats=0.5)
    credit = ratio(torch.tensor([1.0]), completion(student=[0.0], teacher=[1000.0]))
    assert credit.advantage.item() == pytest.approx(math.exp(0.5))


@PROPERTY
@given(rollouts(), rlsds)
def test_no_strength_is_grpo_bit_for_bit(signals, rlsd):
    advantage_B = torch.tensor([0.7, -1.3, 0.0])
    grpo = Uniform()(advantage_B, signals).advantage
    quiet = dataclasses.replace(rlsd, strength=0.0)
    assert torch.equal(quiet(advantage_B, signals).advantage, grpo)
    agreeing = dataclasses.replace(signals, teacher_logprob=signals.student_logprob)
    assert torch.equal(rlsd(advantage_B, agreeing).advantage, grpo)


@PROPERTY
@given(rollouts(), rlsds)
def test_the_sign_never_flips_and_the_weight_keeps_its_bounds(signals, rlsd):
    advantage_B = torch.tensor([1.0, -1.0, 0.0])
    weight = (rlsd(advantage_B, signals).advantage * advantage_B[:, None])[:2]
    counts = signals.mask[:2]
    most = rlsd.strength * rlsd.clip_width + 1e-6
    assert (weight[counts] >= 1 - most).all() and (weight[counts] <= 1 + most).all()
    assert (weight[counts] > 0).all()
    assert (weight[~counts] == 0).all()


@PROPERTY
@given(rollouts(), rlsds, st.floats(0.125, 4.0))
def test_the_advantage_scales_and_its_mirror_is_the_mirrored_teacher(signals, rlsd, scale):
    """A token praised for d in a good completion is blamed for -d in a bad one."""
    signals_turned = dataclasses.replace(
        signals, student_logprob=signals.teacher_logprob, teacher_logprob=signals.student_logprob
    )
    both_signs = dataclasses.replace(rlsd, negative_only=False)
    praised = both_signs(torch.full((3,), 1.0), signals).advantage
    blamed = both_signs(torch.full((3,), -scale), signals_turned).advantage
    torch.testing.assert_close(blamed, -scale * praised)


def test_the_strength_decays_over_the_papers_fifty_steps():
    found = [Rlsd().at_step(step).strength for step in (0, 10, 25, 49, 50, 1000)]
    assert found == pytest.approx([0.5, 0.4, 0.25, 0.01, 0.0, 0.0])
    assert Rlsd(decay_steps=60).at_step(30).strength == 0.25  # the released script
    assert Rlsd(decay_steps=None).at_step(10_000).strength == 0.5


def test_the_warm_up_rises_from_nothing_and_the_decay_waits_for_it():
    rising = Rlsd(strength=0.8, warmup_steps=4, decay_steps=8)
    found = [rising.at_step(step).strength for step in (0, 1, 3, 4, 6, 12)]
    assert found == pytest.approx([0.0, 0.2, 0.6, 0.8, 0.6, 0.0])
    assert Rlsd(warmup_steps=2, decay_steps=None).at_step(1).strength == 0.25


def test_a_step_leaves_the_method_as_it_was_and_keeps_its_other_settings():
    method = Rlsd(clip_width=0.1, negative_only=True, clamp_nats=5.0)
    later = method.at_step(25)
    assert (method.strength, method.decay_steps) == (0.5, 50)
    assert later == Rlsd(strength=0.25, clip_width=0.1, negative_only=True, clamp_nats=5.0, decay_steps=None)
    assert later.at_step(40) == later, "the copy has no schedule left to apply twice"


def test_when_the_schedule_has_run_out_no_signal_is_asked_for():
    assert Rlsd().needs == ("student_logprob", "teacher_logprob")
    over = Rlsd().at_step(50)
    assert over.needs == ()
    bare = TokenSignals(mask=torch.tensor([[True, True, False]]))
    assert over(torch.tensor([1.5]), bare).advantage.tolist() == [[1.5, 1.5, 0.0]]


def test_only_methods_with_a_schedule_are_scheduled():
    assert isinstance(Rlsd(), Scheduled) and isinstance(Rlsd().at_step(3), CreditAssigner)
    assert not any(isinstance(method, Scheduled) for method in (Uniform(), Gear()))


@pytest.mark.parametrize("step", [0, 25, 50])
def test_its_shuffle_decays_with_it_and_moves_the_same_credit(step):
    placebo = Shuffled(of=Rlsd(), seed=3).at_step(step)
    assert placebo == Shuffled(of=Rlsd().at_step(step), seed=3, step=step)
    g = torch.Generator().manual_seed(0)
    signals = completion(student=(-torch.rand(30, generator=g)).tolist(), teacher=[-0.5] * 30)
    advantage_B = torch.tensor([1.0])
    plain, moved = Rlsd().at_step(step)(advantage_B, signals), placebo(advantage_B, signals)
    assert moved.advantage.sort().values.equal(plain.advantage.sort().values)
    assert moved.advantage.equal(plain.advantage) == (step == 50), "and elsewhere, as long as there is any"


def test_the_shuffle_of_a_method_without_a_schedule_moves_on_alone():
    assert Shuffled(of=Gear(), seed=1).at_step(7) == Shuffled(of=Gear(), seed=1, step=7)
    assert Shuffled(of=Shuffled()).at_step(7) == Shuffled(of=Shuffled(step=7), step=7)
    assert Shuffled(of=Shuffled(of=Rlsd())).at_step(25).of.of.strength == 0.25


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"strength": 1.5}, "strength: 1.5 is not a share"),
        ({"strength": math.nan}, "strength: nan is not a share"),
        ({"clip_width": 1.0}, "clip_width: 1.0 must be 0 or more, and below 1"),
        ({"clip_width": -0.1}, "clip_width: -0.1"),
        ({"clamp_nats": 0.0}, "clamp_nats: 0.0 must be above 0"),
        ({"clamp_nats": 100.0}, "clamp_nats: 100.0 must be .* at most 60"),
        ({"decay_steps": 0}, "decay_steps: 0; give 1 step or more, or None"),
        ({"warmup_steps": -1}, "warmup_steps: -1; give 0"),
    ],
)
def test_a_setting_outside_its_range_is_named(settings, message):
    with pytest.raises(ValueError, match=message):
        Rlsd(**settings)
