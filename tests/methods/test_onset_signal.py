"""GEAR with its onsets sought in another signal than the divergence, and its segments ended by the turn."""

import dataclasses
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gear_rl.methods import Gear, RandomOnsets
from methods.completions import ANY, PROPERTY, completion, literal, rollouts

ONE = torch.tensor([1.0])


def six_tokens(turn_id=None):
    """z of the divergence: 0, 1, 1/4, 3/4, 1/2, 0. The teacher finds tokens 2 and 4 less likely: 3 and 1 nats."""
    return completion(
        [0, 4, 1, 3, 2, 0],
        [0, 0, 0, 2, 0, 0.5],
        student=[-1, -1, -1, -1, -1, -1],
        teacher=[-1, -0.5, -4, -1, -2, -1],
        turn_id=turn_id,
    )


@pytest.mark.parametrize(
    ("settings", "onset"),
    [
        ({}, [0, 1, 0, 1, 0, 0]),
        ({"onset_signal": "divergence"}, [0, 1, 0, 1, 0, 0]),
        # student minus teacher 0, -1/2, 3, 0, 1, 0, of which nothing below 0 counts: levels 0, 0, 1, 0, 1/3, 0
        ({"onset_signal": "log_ratio"}, [0, 0, 1, 0, 0, 0]),
        ({"onset_signal": "log_ratio", "onset_threshold": 0.33}, [0, 0, 1, 0, 1, 0]),
        # were the half nat below 0 to count, the tokens of level 0 would rise to 1/7
        (
            {
                "onset_signal": "log_ratio",
                "onset_threshold": 0.1,
                "onset_rule": "threshold",
                "onset_floor_nats": 0.0,
            },
            [0, 0, 1, 0, 1, 0],
        ),
        # levels 0, 0, 0, 1, 0, 1/4
        ({"onset_signal": "entropy"}, [0, 0, 0, 1, 0, 0]),
        ({"onset_signal": "entropy", "onset_threshold": 0.25}, [0, 0, 0, 1, 0, 1]),
        # the floor is one of the signal that is sought in
        ({"onset_signal": "log_ratio", "onset_threshold": 0.33, "onset_floor_nats": 1.1}, [0, 0, 1, 0, 0, 0]),
        ({"onset_signal": "log_ratio", "onset_floor_nats": 3.1}, [0, 0, 0, 0, 0, 0]),
        ({"onset_signal": "entropy", "onset_threshold": 0.25, "onset_floor_nats": 0.6}, [0, 0, 0, 1, 0, 0]),
        # the scale is the divergence's: nats
        ({"onset_signal": "entropy", "divergence_norm": "none", "onset_threshold": 1.9}, [0, 0, 0, 1, 0, 0]),
        ({"onset_signal": "entropy", "divergence_norm": "none", "onset_threshold": 2.1}, [0, 0, 0, 0, 0, 0]),
    ],
)
def test_onset_signal(settings, onset):
    assert literal(**settings).onsets(ANY, six_tokens())[1].long().tolist() == [onset]


@pytest.mark.parametrize(
    ("signal", "turn_id", "segment_id", "raw"),
    [
        # onsets at 1 and 3; whatever opens a segment, it weighs 1 + z of the divergence there
        ("divergence", None, [0, 1, 1, 2, 2, 2], [1, 2, 2, 1.75, 1.75, 1.75]),
        ("log_ratio", None, [0, 1, 2, 2, 2, 2], [1, 2, 1.25, 1.25, 1.25, 1.25]),
        ("entropy", None, [0, 1, 2, 3, 3, 3], [1, 2, 1.25, 1.75, 1.75, 1.75]),
        # the turn ends after token 3, and with it the segment; 1/2 is the peak of the second turn
        ("divergence", [0, 0, 0, 0, 1, 1], [0, 1, 1, 2, 3, 3], [1, 2, 2, 1.75, 1.5, 1.5]),
        ("log_ratio", [0, 0, 0, 0, 1, 1], [0, 1, 2, 2, 3, 4], [1, 2, 1.25, 1.25, 1.5, 1]),
        ("entropy", [0, 0, 0, 0, 1, 1], [0, 1, 2, 3, 4, 5], [1, 2, 1.25, 1.75, 1.5, 1]),
    ],
)
def test_segments_to_the_end_of_the_turn(signal, turn_id, segment_id, raw):
    gear = literal(onset_signal=signal, end_rule="turn", renormalise="none")
    credit = gear(ONE, six_tokens(turn_id))
    assert credit.segment_id[0].tolist() == segment_id
    assert credit.advantage[0].tolist() == pytest.approx(raw)


@pytest.mark.parametrize(
    ("settings", "needs"),
    [
        (
            {"onset_signal": "log_ratio"},
            ("divergence", "student_logprob", "teacher_logprob", "student_entropy"),
        ),
        (
            {"onset_signal": "log_ratio", "end_rule": "turn"},
            ("divergence", "student_logprob", "teacher_logprob"),
        ),
        (
            {"onset_signal": "log_ratio", "estimator": "k3", "end_rule": "turn"},
            ("student_logprob", "teacher_logprob"),
        ),
        ({"onset_signal": "entropy"}, ("divergence", "student_entropy")),
        ({"onset_signal": "entropy", "end_rule": "turn"}, ("divergence", "student_entropy")),
        ({"onset_signal": "entropy", "onset_rule": "never"}, ("divergence",)),
        ({"onset_signal": "log_ratio", "onset_rule": "never"}, ("divergence",)),
    ],
)
def test_needs_follow_the_onset_signal(settings, needs):
    assert literal(**settings).needs == needs


TEACHER = ("teacher_logprob", "divergence", "forward_divergence", "js_divergence")
by_entropy = st.builds(
    Gear,
    estimator=st.sampled_from(["full", "k3"]),
    divergence_norm=st.sampled_from(["minmax", "max", "log1p_minmax", "robust", "none"]),
    departures=st.sampled_from(["all", "with_reward"]),
    aftermath=st.sampled_from([0.0, 0.9, 1.0]),
    onset_signal=st.just("entropy"),
    onset_rule=st.sampled_from(["peak", "threshold", "quantile", "local_max", "never"]),
    onset_floor_nats=st.sampled_from([0.0, 0.01, 0.3]),
    end_rule=st.sampled_from(["next_fork", "entropy_drop", "turn"]),
    aligned=st.sampled_from(["own", "one"]),
)


@PROPERTY
@given(by_entropy, rollouts(), rollouts(), st.sampled_from([-1.0, 0.0, 1.0]))
def test_by_entropy_no_teacher_moves_an_onset_or_an_end(gear, signals, other, sign):
    """Another teacher, or none that is a number, and another sign of the advantage: the segments stay."""
    B, T = signals.mask.shape
    told = {name: getattr(other, "divergence" if "div" in name else name) for name in TEACHER}
    wide = {name: torch.nn.functional.pad(x, (0, T))[:, :T] for name, x in told.items()}
    same = dataclasses.replace(signals, teacher_entropy=wide["divergence"], **wide)
    none = dataclasses.replace(signals, **{name: torch.full((B, T), math.nan) for name in TEACHER})
    advantage_B = torch.tensor([1.0, -0.5, 0.0])
    onset, segment_id = gear.onsets(advantage_B, signals)[1], gear(advantage_B, signals).segment_id
    for changed, base_B in ((same, advantage_B), (same, advantage_B * sign), (none, advantage_B)):
        assert torch.equal(gear.onsets(base_B, changed)[1], onset)
        assert torch.equal(gear(base_B, changed).segment_id, segment_id)


def test_by_entropy_the_teacher_weighs_the_segment():
    """Token 3 opens it whatever the teacher says; it carries the divergence that counts there, 3/4 or nothing."""
    gear = literal(onset_signal="entropy", end_rule="turn", renormalise="none", departures="with_reward")
    against = completion(
        [0, 4, 1, 3, 2, 0], [0, 0, 0, 2, 0, 0.5], student=[-1] * 6, teacher=[-2, -2, -2, -2, -2, -2]
    )
    failure, success = gear(-ONE, against), gear(ONE, against)
    assert failure.segment_id.tolist() == success.segment_id.tolist() == [[0, 1, 2, 3, 3, 3]]
    assert (-failure.advantage[0]).tolist() == pytest.approx([1, 2, 1.25, 1.75, 1.75, 1.75])
    assert success.advantage[0].tolist() == [1.0] * 6


def test_the_placebo_moves_these_onsets_too():
    """The one onset opens, wherever it lands, a segment that reaches to the end."""
    gear = literal(onset_signal="log_ratio", end_rule="turn", renormalise="none")
    seen = set()
    for seed in range(40):
        ids = RandomOnsets(of=gear, seed=seed)(ONE, six_tokens()).segment_id[0].tolist()
        place = max(ids)
        assert ids == list(range(place)) + [place] * (6 - place)
        seen.add(place)
    assert seen == {0, 1, 2, 3, 4, 5}
