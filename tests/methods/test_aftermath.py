"""GEAR's departures: which count, and what is left of those that follow one."""

import math

import pytest
import torch

from gear_rl.methods import Gear, RandomOnsets
from methods.completions import ANY, completion, literal

SLIP = completion(
    # A risky token that went well, a slip, and the two decisions after it, where the teacher is loudest.
    divergence=[0.5, 0, 1, 0, 4, 0, 3, 0],
    entropy=[1, 0, 2, 0, 1, 0, 1, 0],
    student=[-1, 0, -2, 0, -1, 0, -1, 0],
    teacher=[-0.5, 0, -5, 0, -5, 0, -4, 0],
)


def height(advantage, **settings):
    return literal(**settings).onsets(torch.tensor([advantage]), SLIP)[0][0].tolist()


def test_to_the_letter_every_divergence_counts_in_full():
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
        _, onset = literal(onset_threshold=0.6, **settings).onsets(torch.tensor([-1.0]), SLIP)
        return onset[0].nonzero().flatten().tolist()

    assert begins() == [4, 6]
    assert begins(aftermath=1.0, departures="with_reward") == [2]


def begins(advantage, **settings):
    gear = Gear(aftermath=1.0, departures="with_reward", **settings)
    return gear.onsets(torch.tensor([advantage]), SLIP)[1][0].nonzero().flatten().tolist()


def test_the_log_ratio_counts_for_less_too():
    assert begins(-1.0, onset_signal="log_ratio", onset_threshold=0.6) == [2]
    assert begins(1.0, onset_signal="log_ratio", onset_threshold=0.6) == [], (
        "nothing that speaks against it counts"
    )


@pytest.mark.parametrize("advantage", [-1.0, 0.0, 1.0])
def test_entropy_counts_in_full_wherever_the_teacher_stands(advantage):
    """1, 0, 2, 0, 1, 0, 1, 0 nats: levels 1/2, 0, 1, 0, 1/2, 0, 1/2, 0."""
    assert begins(advantage, onset_signal="entropy", onset_threshold=0.6) == [2]
    assert begins(advantage, onset_signal="entropy") == [0, 2, 4, 6]


def test_equal_divergences_tie_where_no_doubt_is_cast_between_them():
    """8 exp(-0.7) twice: the doubts of the first three tokens add up to the same at both, to the last bit."""
    signals = completion([0, 0, 0, 8, 8], student=[0, 0, 0, -1, 0], teacher=[-0.2, -0.2, -0.3, -0.5, 0])
    gear = literal(aftermath=1.0, end_rule="turn")
    assert gear.onsets(ANY, signals)[1].tolist() == [[False, False, False, True, True]]


def test_needs():
    pair = ("student_logprob", "teacher_logprob")
    assert literal().needs == ("divergence", "student_entropy")
    assert Gear().needs == ("divergence", *pair, "student_entropy")
    for settings in ({"aftermath": 0.5}, {"departures": "with_reward"}):
        assert literal(**settings).needs == ("divergence", *pair, "student_entropy")
        assert literal(**settings, onset_rule="never").needs == ("divergence", *pair)


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
        ({"aftermath": 1.5}, "aftermath: 1.5 is not a share; give 0 to 1"),
        ({"aftermath": -0.5}, "aftermath: -0.5 is not a share; give 0 to 1"),
    ],
)
def test_bad_settings(settings, told):
    with pytest.raises(ValueError, match=told):
        Gear(**settings)


def test_to_the_letter_the_advantage_is_not_read():
    assert torch.equal(literal().onsets(ANY, SLIP)[0], literal().onsets(-ANY, SLIP)[0])


def test_the_defaults_by_hand():
    """In the failure 0, 0, 1, 0, 4 exp(-3 0.9^2), 0, 3 exp(-(3 0.9^4 + 4 0.9^2)): one onset, at the slip.

    Its segment ends at token 4, where the student decides anew (entropy 1 of 2).
    """
    credit = Gear()(torch.tensor([-1.0]), SLIP)
    later = [4 * math.exp(-3 * 0.81), 3 * math.exp(-(3 * 0.9**4 + 4 * 0.81))]
    weight = [1, 1, 5, 5, 1 + 4 * later[0], 1, 1 + 4 * later[1], 1]
    assert credit.advantage[0].tolist() == pytest.approx([-w * 8 / sum(weight) for w in weight])
    assert credit.segment_id[0].tolist() == [0, 1, 2, 2, 3, 4, 5, 6]
