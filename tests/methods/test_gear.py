"""GEAR: numbers worked by hand, and the pseudocode as a slow twin."""

import dataclasses
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gear_rl.methods import Gear, RandomOnsets, Shuffled, Uniform
from gear_rl.types import TokenSignals
from methods.completions import ANY, completion, gears, plain, written
from tensor.tables import PROPERTY

ONE = torch.tensor([1.0])


def weights(gear, signals, advantage=1.0):
    """The weights of the only completion, as a list."""
    return (gear(torch.tensor([advantage]), signals).advantage / advantage)[0].tolist()


def ids(gear, signals):
    return gear(ONE, signals).segment_id[0].tolist()


def onsets(gear, signals, advantage=1.0):
    return gear.onsets(torch.tensor([advantage]), signals)[1][0].long().tolist()


def test_the_worked_example():
    """Onsets at 3 and 9; the fork at 7 closes the first segment, the end of the row the second."""
    gear = plain(onset_threshold=0.4, end_threshold=0.5, alpha=1.0)
    signals = completion(
        [0.01, 0.02, 0.01, 2, 0.05, 0.02, 0.03, 0.02, 0.01, 0.9, 0.02],
        [0.1, 0.1, 0.2, 1.5, 0.1, 0.05, 0.1, 1.4, 0.1, 0.2, 0.1],
    )
    assert ids(gear, signals) == [0, 1, 2, 3, 3, 3, 3, 4, 5, 6, 6]
    expected = [0.692, 0.695, 0.692, 1.383, 1.383, 1.383, 1.383, 0.695, 0.692, 1.001, 1.001]
    assert weights(gear, signals) == pytest.approx(expected, abs=5e-4)
    assert sum(weights(gear, signals)) == pytest.approx(11, abs=1e-5)


SLIP = completion(
    # A risky token that went well, a slip, and the two decisions after it, where the teacher is loudest.
    divergence=[0.5, 0, 1, 0, 4, 0, 3, 0],
    entropy=[1, 0, 2, 0, 1, 0, 1, 0],
    student=[-1, 0, -2, 0, -1, 0, -1, 0],
    teacher=[-0.5, 0, -5, 0, -5, 0, -4, 0],
)


def test_the_defaults_by_hand():
    """In the failure 0, 0, 1, 0, 4 exp(-3 0.9^2), 0, 3 exp(-(3 0.9^4 + 4 0.9^2)): one onset, at the slip.

    Its segment ends at token 4, where the student decides anew (entropy 1 of 2).
    """
    credit = Gear()(torch.tensor([-1.0]), SLIP)
    later = [4 * math.exp(-3 * 0.81), 3 * math.exp(-(3 * 0.9**4 + 4 * 0.81))]
    weight = [1, 1, 5, 5, 1 + 4 * later[0], 1, 1 + 4 * later[1], 1]
    assert credit.advantage[0].tolist() == pytest.approx([-w * 8 / sum(weight) for w in weight])
    assert credit.segment_id[0].tolist() == [0, 1, 2, 2, 3, 4, 5, 6]
    # A segment ends at a twentieth of the largest entropy: beside 1.5 nats 0.15 is a decision, and 0.06 is none.
    signals = completion([0.0, 2, 0.0, 0.0, 0.0], [0.0, 1.5, 0.06, 0.15, 0.06])
    assert ids(Gear(departures="all", aftermath=0.0), signals) == [0, 1, 1, 2, 3]


# which divergences count


@pytest.mark.parametrize(
    ("advantage", "settings", "height"),
    [
        (-1.0, {}, [0.125, 0, 0.25, 0, 1, 0, 0.75, 0]),
        # in a failure the tokens that the teacher finds less likely, in a success those it finds more likely
        (-1.0, {"departures": "with_reward"}, [0, 0, 0.25, 0, 1, 0, 0.75, 0]),
        (1.0, {"departures": "with_reward"}, [1, 0, 0, 0, 0, 0, 0, 0]),
        (0.0, {"departures": "with_reward"}, [0] * 8),
    ],
)
def test_departures(advantage, settings, height):
    assert plain(**settings).onsets(torch.tensor([advantage]), SLIP)[0][0].tolist() == height


def test_after_a_departure_the_teacher_counts_for_less():
    """The slip leaves 3 nats of doubt; two tokens later 1/4 of it at aftermath 1/2, and all of it at 1."""
    half = [0.5, 0, 1, 0, 4 * math.exp(-0.75), 0, 3 * math.exp(-(3 / 16 + 4 / 4)), 0]
    whole = [0.5, 0, 1, 0, 4 * math.exp(-3), 0, 3 * math.exp(-7), 0]
    for aftermath, expected in ((0.5, half), (1.0, whole)):
        height = plain(aftermath=aftermath).onsets(-ANY, SLIP)[0][0].tolist()
        assert height == pytest.approx([x / max(expected) for x in expected])
    assert onsets(plain(onset_threshold=0.6), SLIP, -1.0) == [0, 0, 0, 0, 1, 0, 1, 0]
    slip = plain(onset_threshold=0.6, aftermath=1.0, departures="with_reward")
    assert onsets(slip, SLIP, -1.0) == [0, 0, 1, 0, 0, 0, 0, 0]


# settings by hand; z of this row is 0, 1, 1/2, 0, 1/4 with the default scale

ROW = [1, 5, 3, 1, 2]
TOKEN_ONLY = plain(onset_rule="never", renormalise="none")


def test_nats_below_0_count_as_none():
    gear = dataclasses.replace(TOKEN_ONLY, divergence_norm="none")
    assert weights(gear, completion([-1, 4, 0, 2, -0.5])) == pytest.approx([1, 5, 1, 3, 1])


def test_a_percentile_of_0_is_no_scale():
    """One token in 300 diverges: it has the largest weight, 1 + alpha."""
    gear = dataclasses.replace(TOKEN_ONLY, divergence_norm="robust", alpha=4.0)
    assert max(weights(gear, completion([0.0] * 100 + [5.0] + [0.0] * 199))) == 5.0


@pytest.mark.parametrize("rule", ["peak", "threshold", "quantile", "local_max", "never"])
@pytest.mark.parametrize("norm", ["minmax", "max", "log1p_minmax", "robust", "none"])
@pytest.mark.parametrize(
    ("floor", "below", "at"),
    [(0.0, [3e-6, 9e-6, 0, 5e-6, 9e-6], 1.1e-5), (0.01, [3e-3, 9.9e-3, 0, 5e-3, 9e-3], 0.01)],
)
def test_rounding_has_no_pattern(norm, rule, floor, below, at):
    """Below the floor, and below 1e-5 nats in any case, every weight is 1 and nothing opens."""
    gear = plain(
        divergence_norm=norm,
        onset_rule=rule,
        onset_threshold=0.0,
        onset_floor_nats=floor,
        alpha=3.0,
    )
    quiet, loud = completion(below, [0] * 5), completion([*below[:4], at], [0] * 5)
    assert weights(gear, quiet, -0.7) == [1.0] * 5 and ids(gear, quiet) == [0, 1, 2, 3, 4]
    assert not any(onsets(gear, quiet))
    assert weights(gear, loud, -0.7) != [1.0] * 5
    assert any(onsets(gear, loud)) == (rule != "never")


@pytest.mark.parametrize("rest", [0.0, 2.0])
def test_a_divergence_that_is_no_number_is_not_taken_for_noise(rest):
    """So that the engine sees it and the completion falls back."""
    credit = plain()(ONE, completion([rest, math.nan, rest], [0] * 3))
    assert credit.advantage.isnan().any()


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
        ({"onset_rule": "local_max"}, [0, 1, 0, 1, 0, 1, 0, 1, 0]),
        ({"onset_rule": "never"}, [0, 0, 0, 0, 0, 0, 0, 0, 0]),
        ({"onset_rule": "local_max", "onset_floor_nats": 1.1}, [0, 1, 0, 1, 0, 0, 0, 1, 0]),
        ({"onset_rule": "threshold", "onset_threshold": 0.0, "onset_floor_nats": 0.0}, [1] * 9),
    ],
)
def test_onset_rule(settings, onset):
    signals = completion([0, 3, 3, 3, 0, 1, 0, 4, 2], [0] * 9)
    assert onsets(plain(**settings), signals) == onset


@pytest.mark.parametrize(
    ("settings", "onset"),
    [
        # levels 0, 0, 0, 1, 0, 1/4
        ({"onset_signal": "entropy"}, [0, 0, 0, 1, 0, 0]),
        ({"onset_signal": "entropy", "onset_threshold": 0.25}, [0, 0, 0, 1, 0, 1]),
        # the scale is the divergence's: nats
        ({"onset_signal": "entropy", "divergence_norm": "none", "onset_threshold": 2.1}, [0, 0, 0, 0, 0, 0]),
    ],
)
def test_onset_signal(settings, onset):
    """z of the divergence: 0, 1, 1/4, 3/4, 1/2, 0."""
    signals = completion([0, 4, 1, 3, 2, 0], [0, 0, 0, 2, 0, 0.5])
    assert onsets(plain(**settings), signals) == onset


# one onset, at 1
ENDS = TokenSignals(
    mask=torch.ones(1, 6, dtype=torch.bool),
    student_entropy=torch.tensor([[0.0, 0, 0, 1, 2, 0]]),
    teacher_entropy=torch.tensor([[0, 3, 0, 0, 3, 1.4]]),
    sentence_id=torch.tensor([[0, 0, 1, 1, 1, 2]]),
    line_id=torch.tensor([[0, 0, 0, 1, 1, 1]]),
    divergence=torch.tensor([[0.0, 4, 0, 0, 0, 0]]),
)


@pytest.mark.parametrize(
    ("settings", "segment_id"),
    [
        # the student decides anew at 3 (level 1/2) and 4 (level 1)
        ({}, [0, 1, 1, 2, 3, 4]),
        ({"end_threshold": 0.51}, [0, 1, 1, 1, 2, 3]),
        ({"end_rule": "entropy_drop"}, [0, 1, 2, 3, 4, 5]),
        # the teacher at 4; at the onset itself nothing ends
        ({"end_signal": "teacher_entropy"}, [0, 1, 1, 1, 2, 3]),
        # levels 0, 1, 0, 0, 1, 1.4/3: below 1/2 at 2
        ({"end_signal": "teacher_entropy", "end_rule": "entropy_drop"}, [0, 1, 2, 3, 4, 5]),
        # the text: a sentence begins at 2, a line at 3
        ({"end_rule": "sentence"}, [0, 1, 2, 3, 4, 5]),
        ({"end_rule": "line"}, [0, 1, 1, 2, 3, 4]),
        ({"end_rule": "turn"}, [0, 1, 1, 1, 1, 1]),
        ({"end_rule": "fixed_length", "max_segment_tokens": 2}, [0, 1, 1, 2, 3, 4]),
    ],
)
def test_what_ends_a_segment(settings, segment_id):
    credit = plain(renormalise="none", **settings)(ONE, ENDS)
    assert credit.segment_id[0].tolist() == segment_id
    assert credit.advantage[0].tolist() == [2.0 if i == 1 else 1.0 for i in segment_id]


def test_no_peak_and_no_segment_crosses_a_turn():
    """Without a masked token between, only ``turn_id`` shows that tokens 3 and 7 begin a turn."""
    signals = completion([0, 8, 0, 5, 6, 8, 0, 0], [1] * 8, turn_id=[0, 0, 0, 1, 1, 2, 2, 3])
    gear = plain(end_rule="turn")
    assert onsets(gear, signals) == [0, 1, 0, 0, 1, 1, 0, 0]
    assert ids(gear, signals) == [0, 1, 1, 2, 3, 4, 4, 5]


Z = [0, 1, 1 / 2, 0, 1 / 4]
GROW, SHRINK = [math.exp(2 * z) for z in Z], [math.exp(-2 * z) for z in Z]
RAW, ONE_MEAN = [1 + z for z in Z], [w * 5 / 7 for w in (1, 2, 2, 1, 1)]


@pytest.mark.parametrize(
    ("settings", "advantage", "expected"),
    [
        ({"weight_function": "linear"}, 1.0, [1, 3, 2, 1, 1.5]),
        ({"weight_function": "exp"}, 1.0, GROW),
        ({"sign_mode": "aware"}, 3.0, SHRINK),
        ({"sign_mode": "aware"}, -3.0, GROW),
        ({"clip": (0.5, 1.75)}, 1.0, [1, 1.75, 1.75, 1, 1.5]),
        # raw weights 1, 2, 3/2, 1, 5/4: sum 27/4, product 15/4
        ({"alpha": 1.0, "renormalise": "mean"}, 1.0, [x / (6.75 / 5) for x in RAW]),
        ({"alpha": 1.0, "renormalise": "geomean"}, 1.0, [x / 3.75**0.2 for x in RAW]),
        # the clip comes first: 1, 3/2, 3/2, 1, 5/4 sum to 25/4
        ({"alpha": 1.0, "renormalise": "mean", "clip": (0.5, 1.5)}, 1.0, [0.8, 1.2, 1.2, 0.8, 1]),
        ({"alpha": 1.0, "onset_rule": "peak", "aligned": "one"}, 1.0, [1, 2, 2, 1, 1]),
        ({"alpha": 1.0, "onset_rule": "peak", "aligned": "one", "renormalise": "mean"}, 1.0, ONE_MEAN),
    ],
)
def test_weight(settings, advantage, expected):
    gear = dataclasses.replace(TOKEN_ONLY, **{"alpha": 2.0, **settings})
    assert weights(gear, completion(ROW, [0, 0, 0, 4, 1]), advantage) == pytest.approx(expected)


# needs

PAIR = ("student_logprob", "teacher_logprob")


@pytest.mark.parametrize(
    ("settings", "needs"),
    [
        ({}, ("divergence", "student_entropy")),
        ({"onset_rule": "never"}, ("divergence",)),
        ({"estimator": "k3"}, (*PAIR, "student_entropy")),
        ({"onset_signal": "entropy", "onset_rule": "never"}, ("divergence",)),
        (
            {"onset_signal": "entropy", "end_rule": "sentence"},
            ("divergence", "sentence_id", "student_entropy"),
        ),
    ],
)
def test_needs_follow_the_settings(settings, needs):
    gear = plain(**settings)
    assert gear.needs == needs
    numbers = {name: torch.arange(6).view(2, 3) for name in needs if name.endswith("_id")}
    rows = {name: torch.rand(2, 3) for name in needs} | numbers
    mask = torch.ones(2, 3, dtype=torch.bool)
    signals = TokenSignals(mask=mask, token_id=torch.arange(6).view(2, 3), **rows)
    for method in (gear, Shuffled(of=gear), RandomOnsets(of=gear)):
        assert method(torch.tensor([1.0, -1.0]), signals).advantage.isfinite().all()


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


def slow_gear(cfg, A, d, ends, turn, sought):
    """Weights and segments of one completion's model tokens.

    Onsets are peaks of ``sought``, which is ``d`` unless a setting says otherwise; ``ends`` is the end signal, or
    the number of the sentence or line.
    """
    T = len(d)
    if T == 0:
        return [], []
    quiet = max(sought) < 1e-5
    dn = level([0.0] * T if max(d) < max(1e-5, cfg.onset_floor_nats) else d, cfg.divergence_norm)
    hn = level(ends, cfg.entropy_norm, cfg.vocab_size)
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
                if cfg.end_rule in ("sentence", "line") and ends[e] != ends[e - 1]:
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


def divergences(cfg, read):
    if cfg.estimator == "full":
        return read("divergence")
    ratios = [q - p for p, q in zip(read("student_logprob"), read("teacher_logprob"), strict=True)]
    return [abs(r) if cfg.estimator == "abs_k1" else math.exp(r) - 1 - r for r in ratios]


def shares_that_count(cfg, read, A):
    """How much of each divergence of one completion counts, token after token."""
    doubt, shares = 0.0, []
    for p, q in zip(read("student_logprob"), read("teacher_logprob"), strict=True):
        agrees = (q - p) * A > 0 or cfg.departures == "all"
        shares.append(float(torch.tensor(-doubt).exp()) if agrees else 0.0)
        doubt = cfg.aftermath * (doubt + max(0.0, p - q))
    return shares


advantages = st.lists(st.sampled_from([-2.0, -0.5, 0.0, 1.5]), min_size=3, max_size=3).map(torch.tensor)


@settings(PROPERTY, max_examples=120)
@given(gears, advantages, written())
def test_agrees_with_the_pseudocode(gear, advantage_B, signals):
    credit = gear(advantage_B, signals)
    for b, A in enumerate(advantage_B.tolist()):
        counts = signals.mask[b]

        def read(name, b=b, counts=counts):
            return signals.get(name)[b][counts].tolist()

        share = shares_that_count(gear, read, A)
        d = [x * c for x, c in zip(divergences(gear, read), share, strict=True)]
        sought = d
        if gear.onset_signal == "entropy":
            sought = read("student_entropy")
        ends = read({"sentence": "sentence_id", "line": "line_id"}.get(gear.end_rule, gear.end_signal))
        turn = signals.turn_id[b][counts].tolist()
        expected, segments = slow_gear(gear, A, d, ends, turn, sought)
        found = credit.advantage[b][counts].tolist()
        assert found == pytest.approx([A * w for w in expected], rel=1e-5, abs=1e-7)
        inside = {t for s, e in segments for t in range(s + 1, e)}
        opens = [t not in inside for t in range(len(d))]
        assert credit.segment_id[b][counts].tolist() == [sum(opens[: t + 1]) - 1 for t in range(len(d))]


# invariants


@PROPERTY
@given(gears, advantages, written())
def test_alpha_zero_and_a_teacher_that_agrees_are_grpo_bit_for_bit(gear, advantage_B, signals):
    grpo = Uniform()(advantage_B, signals).advantage
    assert torch.equal(dataclasses.replace(gear, alpha=0.0)(advantage_B, signals).advantage, grpo)
    zero = torch.zeros_like(signals.divergence)
    agreed = dataclasses.replace(signals, divergence=zero, teacher_logprob=signals.student_logprob)
    assert torch.equal(gear(advantage_B, agreed).advantage, grpo)
