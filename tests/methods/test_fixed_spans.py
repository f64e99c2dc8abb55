"""Fixed spans: mean divergences of spans over that of the completion, worked by hand."""

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gear_rl.methods import FixedSpans, Uniform
from gear_rl.tensor.segments import turn_ids
from gear_rl.types import TokenSignals
from methods.completions import PROPERTY, completion, rollouts
from methods.test_gear_beyond import written as written_anywhere

SIX = [1, 3, 0, 0, 2, 6]
"""Mean 2. In twos: means 2, 0, 4. In fours: 1 (of 1, 3, 0, 0) and 4 (of 2, 6)."""


@pytest.mark.parametrize(
    ("method", "segment_id", "weight"),
    [
        (FixedSpans(span_tokens=2, strength=1.0), [0, 0, 1, 1, 2, 2], [1, 1, 0, 0, 2, 2]),
        (FixedSpans(span_tokens=2), [0, 0, 1, 1, 2, 2], [1, 1, 0.5, 0.5, 1.5, 1.5]),
        (FixedSpans(span_tokens=4, strength=1.0), [0, 0, 0, 0, 1, 1], [0.5, 0.5, 0.5, 0.5, 2, 2]),
        (FixedSpans(span_tokens=1, strength=1.0), [0, 1, 2, 3, 4, 5], [0.5, 1.5, 0, 0, 1, 3]),
        (FixedSpans(span_tokens=6, strength=1.0), [0] * 6, [1] * 6),
        (FixedSpans(), [0] * 6, [1] * 6),
        (FixedSpans(span_tokens=2, strength=0.0), [0, 0, 1, 1, 2, 2], [1] * 6),
    ],
)
@pytest.mark.parametrize("advantage", [2.0, -0.5, 0.0])
def test_worked_by_hand(method, segment_id, weight, advantage):
    credit = method(torch.tensor([advantage]), completion(SIX))
    assert credit.segment_id[0].tolist() == segment_id
    assert credit.advantage[0].tolist() == pytest.approx([advantage * w for w in weight])


def test_no_span_crosses_a_turn():
    """Turns of three tokens in spans of two: 2, 1, 2, 1. Means 2, 0, 1, 6 over 2."""
    method = FixedSpans(span_tokens=2, strength=1.0)
    expected = [1, 1, 0, 0.5, 0.5, 3]
    credit = method(torch.tensor([1.0]), completion(SIX, turn_id=[0, 0, 0, 1, 1, 1]))
    assert credit.segment_id[0].tolist() == [0, 0, 1, 2, 2, 3]
    assert credit.advantage[0].tolist() == pytest.approx(expected)
    parted = TokenSignals(
        mask=torch.tensor([[True, True, True, False, False, True, True, True]]),
        divergence=torch.tensor([[*SIX[:3], 99.0, 99.0, *SIX[3:]]], dtype=torch.float32),
    )
    credit = method(torch.tensor([1.0]), parted)
    assert credit.segment_id[0].tolist() == [0, 0, 1, -1, -1, 2, 2, 3]
    assert credit.advantage[0].tolist() == pytest.approx([*expected[:3], 0, 0, *expected[3:]])


# spans of the text


def written(sentence_id=None, line_id=None, **more):
    ids = {"sentence_id": sentence_id, "line_id": line_id}
    given = {name: torch.tensor([values]) for name, values in ids.items() if values}
    return dataclasses.replace(completion(SIX, **more), **given)


@pytest.mark.parametrize(
    ("unit", "turn_id", "segment_id", "weight"),
    [
        # 1, 3 and 0, 0, 2 and 6: means 2, 2/3 and 6, over 2
        ("sentence", None, [0, 0, 1, 1, 1, 2], [1, 1, 1 / 3, 1 / 3, 1 / 3, 3]),
        # 1 and 3, 0, 0, 2, 6: means 1 and 11/5
        ("line", None, [0, 1, 1, 1, 1, 1], [0.5, 1.1, 1.1, 1.1, 1.1, 1.1]),
        ("turn", None, [0] * 6, [1] * 6),
        # 1, 3, 0 and 0, 2, 6: means 4/3 and 8/3
        ("turn", [0, 0, 0, 1, 1, 1], [0, 0, 0, 1, 1, 1], [2 / 3, 2 / 3, 2 / 3, 4 / 3, 4 / 3, 4 / 3]),
        # the turn cuts the sentence 0, 0, 2 into 0 and 0, 2
        ("sentence", [0, 0, 0, 1, 1, 1], [0, 0, 1, 2, 2, 3], [1, 1, 0, 0.5, 0.5, 3]),
    ],
)
@pytest.mark.parametrize("strength", [1.0, 0.5])
def test_spans_of_the_text(unit, turn_id, segment_id, weight, strength):
    signals = written([0, 0, 1, 1, 1, 2], [0, 1, 1, 1, 1, 1], turn_id=turn_id)
    credit = FixedSpans(unit=unit, strength=strength, span_tokens=1)(torch.tensor([-2.0]), signals)
    assert credit.segment_id[0].tolist() == segment_id
    expected = [-2 * (1 - strength + strength * w) for w in weight]
    assert credit.advantage[0].tolist() == pytest.approx(expected)


def test_what_a_masked_token_says_of_the_text_is_not_read():
    ids = torch.tensor([[0, 7, 0, 1, -1]])
    mask = torch.tensor([[True, False, True, True, False]])
    signals = TokenSignals(mask=mask, divergence=torch.tensor([[1.0, 9.0, 2.0, 3.0, 9.0]]), line_id=ids)
    credit = FixedSpans(unit="line", strength=1.0)(torch.tensor([1.0]), signals)
    assert credit.segment_id.tolist() == [[0, -1, 1, 2, -1]]  # the gap parts the turns, and so the line
    assert credit.advantage.tolist() == [[0.5, 0, 1, 1.5, 0]]


@pytest.mark.parametrize(
    ("unit", "needs"),
    [
        ("tokens", ("divergence",)),
        ("turn", ("divergence",)),
        ("sentence", ("divergence", "sentence_id")),
        ("line", ("divergence", "line_id")),
    ],
)
def test_needs_follow_the_unit(unit, needs):
    assert FixedSpans(unit=unit).needs == needs
    off = FixedSpans(unit=unit, strength=0.0)
    assert off.needs == ()
    credit = off(torch.tensor([0.7]), TokenSignals(mask=torch.ones(1, 3, dtype=torch.bool)))
    assert torch.equal(credit.advantage, torch.full((1, 3), 0.7))
    assert credit.segment_id.tolist() == [[0, 0, 0]]


def test_a_unit_that_does_not_exist_is_refused():
    method = FixedSpans()
    # The type checker of the tests stops the constructor before our own check, which users rely on.
    object.__setattr__(method, "unit", "step")
    with pytest.raises(ValueError, match="unit: 'step' is not one of tokens, sentence, line, turn"):
        method.__post_init__()


spans = st.builds(FixedSpans, span_tokens=st.integers(1, 5), strength=st.sampled_from([0.0, 0.5, 1.0]))


def by_the_loop(method: FixedSpans, d: list[float], turns: list[int]) -> tuple[list[int], list[float]]:
    """Spans and weights of one completion's trained tokens, one token after the other."""
    ids: list[int] = []
    for t, turn in enumerate(turns):
        begins = t == 0 or turn != turns[t - 1]
        full = not begins and ids.count(ids[-1]) == method.span_tokens
        ids.append((ids[-1] if ids else -1) + (begins or full))
    mean = sum(d) / max(len(d), 1)
    weight = []
    for i in ids:
        inside = [x for x, j in zip(d, ids, strict=True) if j == i]
        share = sum(inside) / len(inside) / mean if mean > 0 else 1.0
        weight.append(1 - method.strength + method.strength * share)
    return ids, weight


@PROPERTY
@given(rollouts(), spans)
def test_agrees_with_the_loop(signals, method):
    credit = method(torch.ones(3), signals)
    turn_id = turn_ids(signals.mask) if signals.turn_id is None else signals.turn_id
    for b, counts in enumerate(signals.mask):
        ids, weight = by_the_loop(method, signals.divergence[b][counts].tolist(), turn_id[b][counts].tolist())
        assert credit.segment_id[b][counts].tolist() == ids
        assert credit.advantage[b][counts].tolist() == pytest.approx(weight, abs=1e-6)


@PROPERTY
@given(written_anywhere(), st.sampled_from(["sentence", "line", "turn"]), st.sampled_from([0.5, 1.0]))
def test_spans_of_the_text_agree_with_the_loop(signals, unit, strength):
    """A span without a longest length, in which a unit of the text or a turn begins the next."""
    method = FixedSpans(unit=unit, strength=strength)
    endless = FixedSpans(span_tokens=10**6, strength=strength)
    credit = method(torch.ones(3), signals)
    for b, counts in enumerate(signals.mask):
        turns = (turn_ids(signals.mask) if signals.turn_id is None else signals.turn_id)[b][counts].tolist()
        own = {"sentence": signals.sentence_id, "line": signals.line_id}.get(unit)
        if own is not None:
            turns = list(zip(turns, own[b][counts].tolist(), strict=True))
        ids, weight = by_the_loop(endless, signals.divergence[b][counts].tolist(), turns)
        assert credit.segment_id[b][counts].tolist() == ids
        assert credit.advantage[b][counts].tolist() == pytest.approx(weight, abs=1e-6)
        assert credit.advantage[b].sum().item() == pytest.approx(counts.sum().item(), abs=1e-4)


@PROPERTY
@given(rollouts(), spans)
def test_the_mean_weight_is_one(signals, method):
    advantage_B = torch.tensor([0.7, -1.3, 0.0])
    found = method(advantage_B, signals).advantage.sum(-1)
    torch.testing.assert_close(found, advantage_B * signals.mask.sum(-1), rtol=1e-5, atol=1e-5)


@PROPERTY
@given(rollouts(), spans)
def test_nothing_to_say_is_grpo_bit_for_bit(signals, method):
    advantage_B = torch.tensor([0.7, -1.3, 0.0])
    grpo = Uniform()(advantage_B, signals).advantage
    off = dataclasses.replace(method, strength=0.0)
    assert off.needs == ()
    bare = TokenSignals(mask=signals.mask, turn_id=signals.turn_id)
    assert torch.equal(off(advantage_B, bare).advantage, grpo)
    agreed = dataclasses.replace(signals, divergence=torch.zeros_like(signals.divergence))
    assert torch.equal(method(advantage_B, agreed).advantage, grpo)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"span_tokens": 0}, "span_tokens: 0; a span has at least 1 token"),
        ({"strength": -0.1}, "strength: -0.1 is not a share"),
        ({"strength": 1.1}, "strength: 1.1 is not a share"),
    ],
)
def test_a_setting_outside_its_range_is_named(settings, message):
    with pytest.raises(ValueError, match=message):
        FixedSpans(**settings)
