"""GEAR: numbers worked by hand, and the pseudocode as a slow twin."""

import dataclasses
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gear_rl.methods import Gear, Uniform
from gear_rl.tensor.segments import turn_ids
from gear_rl.types import TokenSignals
from methods.completions import ANY, PROPERTY, completion, gears, literal, rollouts

ONE = torch.tensor([1.0])


def weights(gear, signals, advantage=1.0):
    """The weights of the only completion, as a list."""
    return (gear(torch.tensor([advantage]), signals).advantage / advantage)[0].tolist()


def ids(gear, signals):
    return gear(ONE, signals).segment_id[0].tolist()


# the worked example

D = [0.01, 0.02, 0.01, 2, 0.05, 0.02, 0.03, 0.02, 0.01, 0.9, 0.02]
H = [0.1, 0.1, 0.2, 1.5, 0.1, 0.05, 0.1, 1.4, 0.1, 0.2, 0.1]
EXAMPLE = literal(onset_threshold=0.4, end_threshold=0.5, alpha=1.0)


def test_the_worked_example():
    """Onsets at 3 and 9; the fork at 7 closes the first segment, the end of the row the second."""
    signals = completion(D, H)
    assert ids(EXAMPLE, signals) == [0, 1, 2, 3, 3, 3, 3, 4, 5, 6, 6]
    expected = [0.692, 0.695, 0.692, 1.383, 1.383, 1.383, 1.383, 0.695, 0.692, 1.001, 1.001]
    assert weights(EXAMPLE, signals) == pytest.approx(expected, abs=5e-4)
    assert sum(weights(EXAMPLE, signals)) == pytest.approx(11, abs=1e-5)


def test_by_default_a_segment_ends_where_the_student_has_any_choice_again():
    """Beside a digit that is hard (1.5 nats) an easy one (0.15) is a tenth, and still a decision of its own."""
    fork = completion([0.0, 2, 0.0, 0.0, 0.0], [0.0, 1.5, 0.06, 0.15, 0.06])
    all_of_it = Gear(departures="all", aftermath=0.0)
    assert ids(all_of_it, fork) == [0, 1, 1, 2, 3]
    was = dataclasses.replace(all_of_it, end_threshold=0.2)
    assert ids(was, fork) == [0, 1, 1, 1, 1]


def test_the_worked_example_with_a_second_turn():
    """The turn ends before token 5, and the first segment with it."""
    signals = completion(D, H, turn_id=[0] * 5 + [1] * 6)
    assert ids(EXAMPLE, signals) == [0, 1, 2, 3, 3, 4, 5, 6, 7, 8, 8]


def test_the_worked_example_with_tool_output_between():
    """A masked token between 4 and 5 parts the turns just as well, and is not credited."""
    signals = TokenSignals(
        mask=torch.tensor([[True] * 5 + [False] + [True] * 6]),
        divergence=torch.tensor([[*D[:5], 99.0, *D[5:]]]),
        student_entropy=torch.tensor([[*H[:5], 99.0, *H[5:]]]),
    )
    credit = EXAMPLE(ONE, signals)
    assert credit.segment_id[0].tolist() == [0, 1, 2, 3, 3, -1, 4, 5, 6, 7, 8, 8]
    expected = EXAMPLE(ONE, completion(D, H, turn_id=[0] * 5 + [1] * 6)).advantage[0].tolist()
    assert credit.advantage[0].tolist() == pytest.approx([*expected[:5], 0.0, *expected[5:]])


def test_the_worked_example_with_entropy_drop():
    """The token after each onset is already certain: one token each."""
    gear = dataclasses.replace(EXAMPLE, end_rule="entropy_drop")
    assert ids(gear, completion(D, H)) == list(range(11))


def test_the_defaults_by_hand():
    """z = 0, 1, 1/2, 0, 1/4. Token 1 is the only peak of 1/2 or more; the fork at 3 ends its segment."""
    signals = completion([1, 5, 3, 1, 2], [0, 0, 0, 4, 1])
    assert ids(literal(), signals) == [0, 1, 1, 2, 3]
    raw = [1, 2, 2, 1, 1.25]
    assert weights(literal(), signals) == pytest.approx([w * 5 / 7.25 for w in raw])
    assert literal()(torch.tensor([-2.0]), signals).advantage[0].tolist() == pytest.approx(
        [-2 * w * 5 / 7.25 for w in raw]
    )


# every setting, by hand; z of this row is 0, 1, 1/2, 0, 1/4 with the default scale

ROW = [1, 5, 3, 1, 2]
TOKEN_ONLY = literal(onset_rule="never", renormalise="none")


@pytest.mark.parametrize(
    ("norm", "z"),
    [
        ("minmax", [0, 1, 1 / 2, 0, 1 / 4]),
        ("max", [1 / 5, 1, 3 / 5, 1 / 5, 2 / 5]),
        ("log1p_minmax", [0, 1, math.log(2) / math.log(3), 0, math.log(1.5) / math.log(3)]),
        # the 0.99 quantile of five tokens lies 0.96 of the way from 3 to 5
        ("robust", [1 / 4.92, 1, 3 / 4.92, 1 / 4.92, 2 / 4.92]),
        ("none", [1, 5, 3, 1, 2]),
    ],
)
def test_divergence_norm(norm, z):
    gear = dataclasses.replace(TOKEN_ONLY, divergence_norm=norm)
    assert weights(gear, completion(ROW)) == pytest.approx([1 + x for x in z], abs=1e-5)


@pytest.mark.parametrize(
    ("norm", "level"),
    [
        ("minmax", 1 / 4),
        ("max", 2 / 5),
        ("log1p_minmax", math.log(1.5) / math.log(3)),
        ("robust", 2 / 4.92),
        ("log_vocab", 2 / math.log(8)),
        ("none", 2.0),
    ],
)
def test_entropy_norm(norm, level):
    """Token 2 of 1, 1, 2, 3, 5 nats closes the segment if its level reaches the threshold, else token 3 does."""
    signals = completion([9, 0, 0, 0, 0], [1, 1, 2, 3, 5])
    at_most = literal(entropy_norm=norm, vocab_size=8, end_threshold=level - 1e-3)
    above = dataclasses.replace(at_most, end_threshold=level + 1e-3)
    assert ids(at_most, signals) == [0, 0, 1, 2, 3]
    assert ids(above, signals) == [0, 0, 0, 1, 2]


@pytest.mark.parametrize(
    ("estimator", "d"),
    [
        ("full", [7, 0, 0, 0]),
        # log-ratios 0, 1, -1, 2
        ("k3", [0, math.e - 2, 1 / math.e, math.e**2 - 3]),
        ("abs_k1", [0, 1, 1, 2]),
    ],
)
def test_estimator(estimator, d):
    signals = completion([7, 0, 0, 0], student=[-3, -3, -3, -3], teacher=[-3, -2, -4, -1])
    gear = dataclasses.replace(TOKEN_ONLY, estimator=estimator, divergence_norm="none")
    assert weights(gear, signals) == pytest.approx([1 + x for x in d], rel=1e-5)


@pytest.mark.parametrize(
    ("norm", "z"),
    [
        ("minmax", [0, 1, 0, 1 / 2, 0]),
        ("log1p_minmax", [0, 1, 0, math.log(3) / math.log(5), 0]),
        ("max", [0, 1, 0, 1 / 2, 0]),
        # the 0.99 quantile of five tokens lies 0.96 of the way from 2 to 4
        ("robust", [0, 1, 0, 2 / 3.92, 0]),
        ("none", [0, 4, 0, 2, 0]),
    ],
)
def test_a_divergence_below_0_is_taken_as_0(norm, z):
    """No divergence is negative but by rounding; by min-max it would lift all the others."""
    gear = dataclasses.replace(TOKEN_ONLY, divergence_norm=norm)
    assert weights(gear, completion([-1, 4, 0, 2, -0.5])) == pytest.approx([1 + x for x in z], abs=1e-5)


NOISE = [3e-6, 9e-6, 0, 5e-6, 9e-6]


@pytest.mark.parametrize("rule", ["peak", "threshold", "quantile", "local_max", "never"])
@pytest.mark.parametrize("norm", ["minmax", "max", "log1p_minmax", "robust", "none"])
@pytest.mark.parametrize("settings", [{}, {"weight_function": "exp", "renormalise": "geomean"}], ids=repr)
def test_rounding_has_no_pattern(norm, rule, settings):
    """Below 1e-5 nats every weight is 1 and nothing opens; from there on numbers say what they say."""
    gear = literal(
        divergence_norm=norm,
        onset_rule=rule,
        onset_threshold=0.0,
        onset_floor_nats=0.0,
        alpha=3.0,
        **settings,
    )
    quiet, loud = completion(NOISE, [0] * 5), completion([*NOISE[:4], 1.1e-5], [0] * 5)
    assert weights(gear, quiet, -0.7) == [1.0] * 5 and ids(gear, quiet) == [0, 1, 2, 3, 4]
    assert not gear.onsets(ANY, quiet)[1].any()
    assert weights(gear, loud, -0.7) != [1.0] * 5
    assert gear.onsets(ANY, loud)[1].any() == (rule != "never")


@pytest.mark.parametrize("rule", ["peak", "never"])
@pytest.mark.parametrize("norm", ["minmax", "max", "robust"])
def test_below_the_floor_there_is_no_pattern(norm, rule):
    """KLs of order 1e-3, a floor of 0.01: all weights are 1. With one of 0.01 numbers say what they say."""
    gear = literal(divergence_norm=norm, onset_rule=rule, alpha=3.0)
    below, at = (
        completion([3e-3, 9.9e-3, 0, 5e-3, 9e-3], [0] * 5),
        completion([3e-3, 0.01, 0, 5e-3, 9e-3], [0] * 5),
    )
    assert weights(gear, below, -0.7) == [1.0] * 5 and ids(gear, below) == [0, 1, 2, 3, 4]
    assert weights(gear, at, -0.7) != [1.0] * 5
    assert weights(dataclasses.replace(gear, onset_floor_nats=0.0), below, -0.7) != [1.0] * 5


def test_what_does_not_count_lifts_no_noise():
    """Two nats that speak for the token, in a failure; all that counts is rounding."""
    signals = completion(
        [5e-6, 2.0, 0, 9e-6], [0] * 4, student=[-1, -2, -1, -1], teacher=[-1.1, -1, -1, -1.1]
    )
    gear = literal(departures="with_reward", onset_floor_nats=0.0)
    assert weights(gear, signals, -1.0) == [1.0] * 4 and not gear.onsets(-ANY, signals)[1].any()
    assert gear.onsets(ANY, signals)[1].tolist() == [[False, True, False, False]]


@pytest.mark.parametrize("rest", [0.0, 2.0])
def test_a_divergence_that_is_no_number_is_not_taken_for_noise(rest):
    """So that the engine sees it and the completion falls back."""
    credit = literal()(ONE, completion([rest, math.nan, rest], [0] * 3))
    assert credit.advantage.isnan().any()


def test_a_huge_log_ratio_stays_finite():
    signals = completion(student=[-500, -1], teacher=[-1, -500])
    assert literal(estimator="k3", onset_rule="never")(ONE, signals).advantage.isfinite().all()


@pytest.mark.parametrize(
    ("settings", "onset"),
    [
        # z = 0, 3/4, 3/4, 3/4, 0, 1/4, 0, 1, 1/2
        ({"onset_rule": "peak", "onset_threshold": 0.5}, [0, 1, 0, 1, 0, 0, 0, 1, 0]),
        ({"onset_rule": "peak", "onset_threshold": 0.75}, [0, 1, 0, 1, 0, 0, 0, 1, 0]),
        ({"onset_rule": "peak", "onset_threshold": 0.76}, [0, 0, 0, 0, 0, 0, 0, 1, 0]),
        ({"onset_rule": "threshold", "onset_threshold": 0.5}, [0, 1, 1, 1, 0, 0, 0, 1, 1]),
        # sorted: 0 0 0 1/4 1/2 3/4 3/4 3/4 1; the middle is 1/2
        ({"onset_rule": "quantile", "onset_threshold": 0.5}, [0, 1, 1, 1, 0, 0, 0, 1, 1]),
        ({"onset_rule": "quantile", "onset_threshold": 1.0}, [0, 0, 0, 0, 0, 0, 0, 1, 0]),
        ({"onset_rule": "local_max"}, [0, 1, 0, 1, 0, 1, 0, 1, 0]),
        ({"onset_rule": "never"}, [0, 0, 0, 0, 0, 0, 0, 0, 0]),
        # nats 0, 3, 3, 3, 0, 1, 0, 4, 2: the floor is one of nats, whatever the scale
        ({"onset_rule": "local_max", "onset_floor_nats": 1.0}, [0, 1, 0, 1, 0, 1, 0, 1, 0]),
        ({"onset_rule": "local_max", "onset_floor_nats": 1.1}, [0, 1, 0, 1, 0, 0, 0, 1, 0]),
        ({"onset_rule": "threshold", "onset_threshold": 0.0, "onset_floor_nats": 0.0}, [1] * 9),
    ],
)
def test_onset_rule(settings, onset):
    signals = completion([0, 3, 3, 3, 0, 1, 0, 4, 2], [0] * 9)
    assert literal(**settings).onsets(ANY, signals)[1].long().tolist() == [onset]


def test_a_peak_belongs_to_its_turn():
    """z = 1/4, 1/2, 1, 1/2: where the turn ends after token 1, its 1/2 is a peak too."""
    nats = [1, 2, 4, 2]
    one, two = completion(nats, [0] * 4), completion(nats, [0] * 4, turn_id=[0, 0, 1, 1])
    gear = literal(divergence_norm="max")
    assert gear.onsets(ANY, one)[1].long().tolist() == [[0, 0, 1, 0]]
    assert gear.onsets(ANY, two)[1].long().tolist() == [[0, 1, 1, 0]]


def test_noise_below_the_floor_opens_nothing():
    """Min-max makes a peak of anything; these KLs are of order 1e-4."""
    noise = torch.rand(1, 400, generator=torch.Generator().manual_seed(0)) * 1e-3
    mask = torch.ones(1, 400, dtype=torch.bool)
    signals = TokenSignals(mask=mask, divergence=noise, student_entropy=torch.zeros(1, 400))
    assert not literal().onsets(ANY, signals)[1].any()
    assert literal(onset_floor_nats=0.0).onsets(ANY, signals)[1].sum() > 20


@pytest.mark.parametrize(
    ("settings", "segment_id"),
    [
        # onsets at 1 and 6; levels of entropy 0, 0, 1, 1/2, 0, 1, 0, 1/2, 0
        ({"end_rule": "next_fork"}, [0, 1, 2, 3, 4, 5, 6, 7, 8]),
        ({"end_rule": "next_fork", "end_threshold": 0.51}, [0, 1, 2, 3, 4, 5, 6, 6, 6]),
        ({"end_rule": "entropy_drop"}, [0, 1, 1, 1, 2, 3, 4, 4, 5]),
        ({"end_rule": "entropy_drop", "end_threshold": 0.51}, [0, 1, 1, 2, 3, 4, 5, 6, 7]),
        ({"end_rule": "fixed_length", "max_segment_tokens": 3}, [0, 1, 1, 1, 2, 3, 4, 4, 4]),
        ({"end_rule": "fixed_length", "max_segment_tokens": 9}, [0, 1, 1, 1, 1, 1, 2, 2, 2]),
        ({"end_rule": "turn"}, [0, 1, 1, 1, 1, 1, 2, 2, 2]),
        ({"end_rule": "turn", "max_segment_tokens": 2}, [0, 1, 1, 2, 3, 4, 5, 5, 6]),
        ({"end_rule": "entropy_drop", "max_segment_tokens": 2}, [0, 1, 1, 2, 3, 4, 5, 5, 6]),
    ],
)
def test_end_rule(settings, segment_id):
    signals = completion([0, 8, 0, 0, 0, 0, 8, 0, 0], [0, 0, 2, 1, 0, 2, 0, 1, 0])
    assert ids(literal(**settings), signals) == segment_id


@pytest.mark.parametrize(
    ("settings", "segment_id"),
    [
        ({"end_rule": "turn"}, [0, 1, 1, 2, 3, 4, 4, 5]),
        ({"end_rule": "turn", "max_segment_tokens": 1}, [0, 1, 2, 3, 4, 5, 6, 7]),
        ({"end_rule": "fixed_length", "max_segment_tokens": 8}, [0, 1, 1, 2, 3, 4, 4, 5]),
        ({"end_rule": "entropy_drop", "end_threshold": 0.0}, [0, 1, 1, 2, 3, 4, 4, 5]),
    ],
)
def test_no_segment_crosses_a_turn(settings, segment_id):
    signals = completion([0, 8, 0, 0, 0, 8, 0, 0], [1] * 8, turn_id=[0, 0, 0, 1, 1, 1, 1, 2])
    assert ids(literal(**settings), signals) == segment_id


@pytest.mark.parametrize(("aligned", "raw"), [("own", [1, 2, 2, 1, 1.25]), ("one", [1, 2, 2, 1, 1])])
def test_aligned(aligned, raw):
    signals = completion(ROW, [0, 0, 0, 4, 1])
    gear = literal(aligned=aligned, renormalise="none")
    assert weights(gear, signals) == pytest.approx(raw)
    assert weights(literal(aligned=aligned), signals) == pytest.approx([w * 5 / sum(raw) for w in raw])


Z = [0, 1, 1 / 2, 0, 1 / 4]
GROW, SHRINK = [math.exp(2 * z) for z in Z], [math.exp(-2 * z) for z in Z]


@pytest.mark.parametrize(
    ("settings", "advantage", "expected"),
    [
        ({"weight_function": "linear"}, 1.0, [1, 3, 2, 1, 1.5]),
        ({"weight_function": "linear"}, -3.0, [1, 3, 2, 1, 1.5]),
        ({"weight_function": "exp"}, 1.0, GROW),
        ({"weight_function": "exp"}, -3.0, GROW),
        ({"sign_mode": "aware"}, 3.0, SHRINK),
        ({"sign_mode": "aware"}, -3.0, GROW),
        ({"sign_mode": "neg_only"}, 3.0, [1, 1, 1, 1, 1]),
        ({"sign_mode": "neg_only"}, -3.0, [1, 3, 2, 1, 1.5]),
        ({"sign_mode": "neg_only", "weight_function": "exp"}, -3.0, GROW),
        ({"clip": (0.5, 1.75)}, 1.0, [1, 1.75, 1.75, 1, 1.5]),
        ({"clip": (0.5, 1.75), "sign_mode": "aware"}, 1.0, [1, 0.5, 0.5, 1, math.exp(-0.5)]),
    ],
)
def test_weight(settings, advantage, expected):
    gear = dataclasses.replace(TOKEN_ONLY, alpha=2.0, **settings)
    assert weights(gear, completion(ROW), advantage) == pytest.approx(expected)


def test_renormalise():
    """Raw weights 1, 2, 3/2, 1, 5/4: sum 27/4, product 15/4."""
    raw, signals = [1, 2, 1.5, 1, 1.25], completion(ROW)
    for renormalise, divisor in (("none", 1.0), ("mean", 6.75 / 5), ("geomean", 3.75**0.2)):
        gear = literal(onset_rule="never", renormalise=renormalise)
        assert weights(gear, signals) == pytest.approx([w / divisor for w in raw])


def test_the_clip_comes_before_the_renormalisation():
    """1, 2, 3/2, 1, 5/4 clipped to at most 3/2 sum to 25/4."""
    gear = literal(onset_rule="never", clip=(0.5, 1.5))
    assert weights(gear, completion(ROW)) == pytest.approx([w / 1.25 for w in [1, 1.5, 1.5, 1, 1.25]])


# needs


@pytest.mark.parametrize(
    ("settings", "needs"),
    [
        ({}, ("divergence", "student_entropy")),
        ({"end_rule": "entropy_drop"}, ("divergence", "student_entropy")),
        ({"end_rule": "turn"}, ("divergence",)),
        ({"end_rule": "fixed_length", "max_segment_tokens": 8}, ("divergence",)),
        ({"onset_rule": "never"}, ("divergence",)),
        ({"estimator": "k3"}, ("student_logprob", "teacher_logprob", "student_entropy")),
        ({"estimator": "abs_k1", "onset_rule": "never"}, ("student_logprob", "teacher_logprob")),
    ],
)
def test_needs_follow_the_settings(settings, needs):
    gear = literal(**settings)
    assert gear.needs == needs
    signals = TokenSignals(
        mask=torch.ones(2, 3, dtype=torch.bool), **{name: torch.rand(2, 3) for name in needs}
    )
    assert gear(torch.tensor([1.0, -1.0]), signals).advantage.isfinite().all()


# refusals


@pytest.mark.parametrize(
    ("field", "settings"),
    [
        ("onset_threshold", {"onset_threshold": -0.1}),
        ("onset_threshold", {"onset_threshold": math.nan}),
        ("onset_threshold", {"onset_rule": "quantile", "onset_threshold": 1.5}),
        ("onset_floor_nats", {"onset_floor_nats": -1e-9}),
        ("onset_floor_nats", {"onset_floor_nats": math.inf}),
        ("end_threshold", {"end_threshold": -1.0}),
        ("alpha", {"alpha": -0.5}),
        ("alpha", {"alpha": math.inf}),
        ("max_segment_tokens", {"max_segment_tokens": 0}),
        ("max_segment_tokens", {"end_rule": "fixed_length"}),
        ("clip", {"clip": (0.0, 2.0)}),
        ("clip", {"clip": (1.1, 2.0)}),
        ("clip", {"clip": (0.5, 0.9)}),
        ("clip", {"clip": (0.5, math.inf)}),
        ("clip", {"clip": (math.nan, 2.0)}),
        ("vocab_size", {"entropy_norm": "log_vocab"}),
        ("vocab_size", {"entropy_norm": "log_vocab", "vocab_size": 1}),
    ],
)
def test_a_setting_out_of_its_range_is_refused_by_name(field, settings):
    with pytest.raises(ValueError, match=f"^{field}: "):
        literal(**settings)


@pytest.mark.parametrize(
    ("field", "choice"),
    [
        ("estimator", "topk"),
        ("divergence_norm", "log_vocab"),  # entropies only
        ("entropy_norm", "zscore"),
        ("onset_signal", "kl"),
        ("departures", "some"),
        ("onset_rule", "peaks"),
        ("end_rule", "next_onset"),
        ("aligned", "zero"),
        ("weight_function", "tanh"),
        ("sign_mode", "pos_only"),
        ("renormalise", "sum"),
    ],
)
def test_a_choice_that_does_not_exist_is_refused_by_name(field, choice):
    gear = literal()
    # The type checker of the tests stops the constructor before our own check, which users rely on.
    object.__setattr__(gear, field, choice)
    with pytest.raises(ValueError, match=f"^{field}: '{choice}' is not one of .*{getattr(literal(), field)}"):
        gear.__post_init__()


@pytest.mark.parametrize(
    "settings",
    [
        {"onset_threshold": 1.5},
        {"max_segment_tokens": 1},
        {"clip": (1.0, 1.0)},
        {"alpha": 0.0},
        {"entropy_norm": "log_vocab", "vocab_size": 2},
        {"onset_rule": "quantile", "onset_threshold": 1.0},
    ],
)
def test_a_setting_at_the_edge_of_its_range_is_taken(settings):
    assert dataclasses.asdict(literal(**settings)).items() >= settings.items()


# the slow twin


def level(values, how, vocab_size=0):
    """One completion's numbers on the scale that ``how`` names."""
    if how == "log1p_minmax":
        values = [math.log1p(v) for v in values]
    if how in ("minmax", "log1p_minmax"):
        least, span = min(values), max(values) - min(values)
        return [(v - least) / span if span > 0 else 0.0 for v in values]
    if how == "none":
        return values
    if how == "log_vocab":
        return [v / math.log(vocab_size) for v in values]
    scale = max(values) if how == "max" else quantile(values, 0.99)
    return [min(v / scale, 1.0) if scale > 0 else 0.0 for v in values]


def quantile(values, q):
    ordered, place = sorted(values), (len(values) - 1) * q
    below, above = ordered[math.floor(place)], ordered[math.ceil(place)]
    return below + (above - below) * (place - math.floor(place))


def slow_gear(cfg, A, d, entropy, turn, sought):
    """The pseudocode of docs/methods, section GEAR: weights and segments of one completion's model tokens.

    Onsets are peaks of ``sought``, which is ``d`` unless a setting says otherwise.
    """
    T = len(d)
    if T == 0:
        return [], []
    quiet = max(sought) < 1e-5
    dn = level([0.0] * T if max(d) < max(1e-5, cfg.onset_floor_nats) else d, cfg.divergence_norm)
    hn = level(entropy, cfg.entropy_norm, cfg.vocab_size)
    sn = level(sought, cfg.divergence_norm)
    inf = math.inf

    def highest(t):
        left = sn[t - 1] if t > 0 and turn[t - 1] == turn[t] else -inf
        right = sn[t + 1] if t + 1 < T and turn[t + 1] == turn[t] else -inf
        return sn[t] >= left and sn[t] >= right and (sn[t] > left or sn[t] > right)

    def peak(t):
        if cfg.onset_rule == "never" or quiet or sought[t] < cfg.onset_floor_nats:
            return False
        if cfg.onset_rule == "local_max":
            return highest(t)
        if cfg.onset_rule == "quantile":
            return sn[t] >= quantile(sn, cfg.onset_threshold)
        return sn[t] >= cfg.onset_threshold and (cfg.onset_rule == "threshold" or highest(t))

    segments, t = [], 0
    while t < T:
        if peak(t):
            e = t + 1
            while e < T and turn[e] == turn[t]:
                if cfg.max_segment_tokens and e - t >= cfg.max_segment_tokens:
                    break
                if peak(e):
                    break
                if cfg.end_rule == "next_fork" and hn[e] >= cfg.end_threshold:
                    break
                if cfg.end_rule == "entropy_drop" and hn[e] < cfg.end_threshold:
                    break
                e += 1
            segments.append((t, e))
            t = e
        else:
            t += 1
    z = list(dn) if cfg.aligned == "own" else [0.0] * T
    for s, e in segments:
        z[s:e] = [dn[s]] * (e - s)
    sign = (A > 0) - (A < 0)
    u = [math.exp(cfg.alpha * x) if cfg.weight_function == "exp" else 1 + cfg.alpha * x for x in z]
    if cfg.sign_mode == "aware":
        u = [math.exp(-sign * cfg.alpha * x) for x in z]
    if cfg.sign_mode == "neg_only" and not A < 0:
        u = [1.0] * T
    if cfg.clip:
        u = [min(max(x, cfg.clip[0]), cfg.clip[1]) for x in u]
    if cfg.renormalise == "mean":
        u = [x * T / sum(u) for x in u]
    if cfg.renormalise == "geomean":
        mean = math.exp(sum(math.log(x) for x in u) / T)
        u = [x / mean for x in u]
    return u, segments


def divergences(cfg, signals, b, counts):
    if cfg.estimator == "full":
        return signals.divergence[b][counts].tolist()
    ratios = (signals.teacher_logprob - signals.student_logprob)[b][counts].tolist()
    return [abs(r) if cfg.estimator == "abs_k1" else math.exp(r) - 1 - r for r in ratios]


def sought_in(cfg, signals, b, counts):
    """The numbers in which the onsets of one completion are sought."""
    if cfg.onset_signal == "entropy":
        return signals.student_entropy[b][counts].tolist()
    if cfg.onset_signal == "log_ratio":
        return [max(0.0, r) for r in (signals.student_logprob - signals.teacher_logprob)[b][counts].tolist()]
    return divergences(cfg, signals, b, counts)


def shares_that_count(cfg, signals, b, counts, A):
    """How much of each divergence of one completion counts, token after token."""
    ratios = (signals.teacher_logprob - signals.student_logprob)[b][counts].tolist()
    doubt, shares = 0.0, []
    for r in ratios:
        agrees = r * A > 0 or cfg.departures == "all"
        shares.append(float(torch.tensor(-doubt).exp()) if agrees else 0.0)
        doubt = cfg.aftermath * (doubt + max(0.0, -r))
    return shares


def turns_of(signals):
    return signals.turn_id if signals.turn_id is not None else turn_ids(signals.mask)


advantages = st.lists(st.sampled_from([-2.0, -0.5, 0.0, 1.5]), min_size=3, max_size=3).map(torch.tensor)


@PROPERTY
@given(gears, advantages, rollouts())
def test_agrees_with_the_pseudocode(gear, advantage_B, signals):
    credit = gear(advantage_B, signals)
    turn_id = turns_of(signals)
    for b, A in enumerate(advantage_B.tolist()):
        counts = signals.mask[b]
        entropy = signals.student_entropy[b][counts].tolist()
        share = shares_that_count(gear, signals, b, counts, A)
        d = [x * c for x, c in zip(divergences(gear, signals, b, counts), share, strict=True)]
        whole = [1.0] * len(share) if gear.onset_signal == "entropy" else share
        sought = [x * c for x, c in zip(sought_in(gear, signals, b, counts), whole, strict=True)]
        expected, segments = slow_gear(gear, A, d, entropy, turn_id[b][counts].tolist(), sought)
        found = credit.advantage[b][counts].tolist()
        assert found == pytest.approx([A * w for w in expected], rel=1e-5, abs=1e-7)
        inside = {t: s for s, e in segments for t in range(s + 1, e)}
        opens = [t not in inside for t in range(len(d))]
        assert credit.segment_id[b][counts].tolist() == [sum(opens[: t + 1]) - 1 for t in range(len(d))]


# invariants


@pytest.mark.parametrize("rule", ["peak", "threshold", "quantile", "local_max", "never"])
def test_a_masked_token_is_no_onset_and_has_no_height(rule):
    """Whatever stands there, and also where every height reaches the threshold."""
    mask = torch.tensor([[True, False, True, True], [False, False, True, False], [False] * 4])
    signals = TokenSignals(mask=mask, divergence=torch.where(mask, 1.0, 9.0))
    height, onset = literal(onset_rule=rule, onset_threshold=0.0).onsets(torch.ones(3), signals)
    assert not (onset & ~mask).any()
    assert (height == 0).all()


@PROPERTY
@given(gears, rollouts())
def test_weights_are_positive_and_shared_within_segments_of_one_turn(gear, signals):
    credit = gear(torch.ones(3), signals)
    turn_id = turns_of(signals)
    for b in range(3):
        segments = credit.segment_id[b].tolist()
        for segment in range(max(segments) + 1):
            members = [t for t, i in enumerate(segments) if i == segment]
            assert members == list(range(members[0], members[-1] + 1))
            assert len({turn_id[b, t].item() for t in members}) == 1
            assert len({credit.advantage[b, t].item() for t in members}) == 1
    assert (credit.advantage[signals.mask] > 0).all()


@PROPERTY
@given(gears, advantages, rollouts())
def test_the_weights_sum_to_the_number_of_tokens(gear, advantage_B, signals):
    credit = dataclasses.replace(gear, renormalise="mean")(advantage_B, signals)
    expected = advantage_B * signals.mask.sum(-1)
    torch.testing.assert_close(credit.advantage.sum(-1), expected, rtol=1e-5, atol=1e-5)


@PROPERTY
@given(gears, rollouts())
def test_geomean_weights_multiply_to_one(gear, signals):
    credit = dataclasses.replace(gear, renormalise="geomean")(torch.ones(3), signals)
    logs = torch.where(signals.mask, credit.advantage, 1.0).log().sum(-1)
    torch.testing.assert_close(logs, torch.zeros(3), rtol=0, atol=1e-4)


@PROPERTY
@given(gears, advantages, rollouts())
def test_alpha_zero_is_grpo_bit_for_bit(gear, advantage_B, signals):
    credit = dataclasses.replace(gear, alpha=0.0)(advantage_B, signals)
    assert torch.equal(credit.advantage, Uniform()(advantage_B, signals).advantage)


@PROPERTY
@given(gears, advantages, rollouts())
def test_a_teacher_that_agrees_is_grpo_bit_for_bit(gear, advantage_B, signals):
    agreed = dataclasses.replace(
        signals,
        divergence=torch.zeros_like(signals.divergence),
        teacher_logprob=signals.student_logprob,
    )
    assert torch.equal(gear(advantage_B, agreed).advantage, Uniform()(advantage_B, agreed).advantage)


@pytest.mark.parametrize("nats", [0.0, 0.5, 3.0])
@pytest.mark.parametrize("renormalise", ["mean", "none", "geomean"])
def test_a_flat_signal_is_grpo_exactly(nats, renormalise):
    signals = TokenSignals(
        mask=torch.tensor([[1, 1, 1, 0, 1], [1, 1, 0, 0, 0]]).bool(),
        divergence=torch.full((2, 5), nats),
        student_entropy=torch.full((2, 5), 1.3),
    )
    advantage_B = torch.tensor([0.7, -1.1])
    found = literal(renormalise=renormalise)(advantage_B, signals).advantage
    assert torch.equal(found, Uniform()(advantage_B, signals).advantage)


@pytest.mark.parametrize("norm", ["minmax", "max", "log1p_minmax", "robust", "none"])
def test_one_token_keeps_its_advantage(norm):
    signals = completion([2.5], [1.0])
    assert literal(divergence_norm=norm)(torch.tensor([-0.3]), signals).advantage.tolist() == [
        [pytest.approx(-0.3)]
    ]


@pytest.mark.parametrize("settings", [{"weight_function": "exp"}, {"sign_mode": "aware"}])
def test_a_divergence_of_a_hundred_nats_stays_finite(settings):
    """exp(alpha d) overflows float32 from 89 nats; the renormalised weight is a ratio that does not."""
    gear = literal(divergence_norm="none", **settings)
    credit = gear(torch.tensor([-1.0]), completion([0.0, 100.0], [0.0, 0.0]))
    assert credit.advantage.isfinite().all()


def test_the_quantile_rule_takes_the_token_on_the_quantile():
    """26 different divergences: 0.6 of the way along the sorted ones stands the 15th, and 10 lie above."""
    signals = completion(list(range(26)), [0.0] * 26)
    assert literal(onset_rule="quantile", onset_threshold=0.6).onsets(ANY, signals)[1].sum() == 11
