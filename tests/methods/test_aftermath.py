"""GEAR's departures: which count, and what is left of those that follow one."""

import math

import pytest
import torch

from gear_rl.methods import Gear, RandomOnsets
from methods.completions import ANY, completion

SLIP = completion(
    # A risky token that went well, a slip, and the two decisions after it, where the teacher is loudest.
    divergence=[0.5, 0, 1, 0, 4, 0, 3, 0],
    entropy=[1, 0, 2, 0, 1, 0, 1, 0],
    student=[-1, 0, -2, 0, -1, 0, -1, 0],
    teacher=[-0.5, 0, -5, 0, -5, 0, -4, 0],
)


def height(advantage, **settings):
    return Gear(**settings).onsets(torch.tensor([advantage]), SLIP)[0][0].tolist()


def test_by_default_every_divergence_counts_in_full():
    assert height(-1.0) == height(1.0) == [0.125, 0, 0.25, 0, 1, 0, 0.75, 0]


def test_in_a_failure_only_tokens_that_the_teacher_finds_less_likely_count():
    assert height(-1.0, departures="with_reward") == [0, 0, 0.25, 0, 1, 0, 0.75, 0]


def test_in_a_success_only_tokens_that_it_finds_more_likely():
    assert height(1.0, departures="with_reward") == [1, 0, 0, 0, 0, 0, 0, 0]


def test_without_an_advantage_none_counts():
    assert height(0.0, departures="with_reward") == [0] * 8


def test_after_a_departure_the_teacher_counts_for_less():
    # The slip leaves 3 nats of doubt; two tokens later 1/4 of it at aftermath 1/2, and all of it at 1.
    half = [0.5, 0, 1, 0, 4 * math.exp(-0.75), 0, 3 * math.exp(-(3 / 16 + 4 / 4)), 0]
    assert height(-1.0, aftermath=0.5) == pytest.approx([x / max(half) for x in half])
    whole = [0.5, 0, 1, 0, 4 * math.exp(-3), 0, 3 * math.exp(-7), 0]
    assert height(-1.0, aftermath=1.0) == pytest.approx(whole)


def test_the_segment_then_begins_at_the_slip_and_not_one_decision_later():
    def begins(**settings):
        _, onset = Gear(onset_threshold=0.6, **settings).onsets(torch.tensor([-1.0]), SLIP)
        return onset[0].nonzero().flatten().tolist()

    assert begins() == [4, 6]
    assert begins(aftermath=1.0, departures="with_reward") == [2]


@pytest.mark.parametrize("signal", ["log_ratio", "entropy"])
def test_other_onset_signals_count_for_less_too(signal):
    gear = Gear(onset_signal=signal, aftermath=1.0, departures="with_reward", onset_threshold=0.6)
    assert gear.onsets(torch.tensor([-1.0]), SLIP)[1][0].nonzero().flatten().tolist() == [2]


def test_needs():
    pair = ("student_logprob", "teacher_logprob")
    assert Gear().needs == ("divergence", "student_entropy")
    for settings in ({"aftermath": 0.5}, {"departures": "with_reward"}):
        assert Gear(**settings).needs == ("divergence", *pair, "student_entropy")
        assert Gear(**settings, onset_rule="never").needs == ("divergence", *pair)


def test_the_placebo_takes_the_counted_onsets_along():
    gear = Gear(onset_threshold=0.6, aftermath=1.0, departures="with_reward", end_rule="turn")
    places = set()
    for seed in range(40):
        ids = RandomOnsets(of=gear, seed=seed)(torch.tensor([-1.0]), SLIP).segment_id[0].tolist()
        assert ids == [*range(max(ids)), *[max(ids)] * (8 - max(ids))]  # one onset, to the end of the turn
        places.add(max(ids))
    assert places == set(range(8))


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"aftermath": 1.5}, "aftermath: 1.5 is a share of the doubt; give 0 to 1"),
        ({"aftermath": -0.5}, "aftermath: -0.5 must be a finite number, 0 or more"),
    ],
)
def test_bad_settings(settings, told):
    with pytest.raises(ValueError, match=told):
        Gear(**settings)


def test_the_advantage_is_not_read_by_default():
    assert torch.equal(Gear().onsets(ANY, SLIP)[0], Gear().onsets(-ANY, SLIP)[0])
