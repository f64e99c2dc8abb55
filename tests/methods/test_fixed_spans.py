"""Fixed spans: mean divergences of spans over that of the completion, worked by hand."""

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gear_rl.methods import FixedSpans
from gear_rl.types import TokenSignals
from methods.completions import PROPERTY, completion, turns_of, written

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


@pytest.mark.parametrize(
    ("unit", "turn_id", "segment_id", "weight"),
    [
        # 1, 3 and 0, 0, 2 and 6: means 2, 2/3 and 6, over 2
        ("sentence", None, [0, 0, 1, 1, 1, 2], [1, 1, 1 / 3, 1 / 3, 1 / 3, 3]),
        # 1 and 3, 0, 0, 2, 6: means 1 and 11/5
        ("line", None, [0, 1, 1, 1, 1, 1], [0.5, 1.1, 1.1, 1.1, 1.1, 1.1]),
        # 1, 3, 0 and 0, 2, 6: means 4/3 and 8/3
        ("turn", [0, 0, 0, 1, 1, 1], [0, 0, 0, 1, 1, 1], [2 / 3, 2 / 3, 2 / 3, 4 / 3, 4 / 3, 4 / 3]),
        # the turn cuts the sentence 0, 0, 2 into 0 and 0, 2
        ("sentence", [0, 0, 0, 1, 1, 1], [0, 0, 1, 2, 2, 3], [1, 1, 0, 0.5, 0.5, 3]),
    ],
)
def test_spans_of_the_text(unit, turn_id, segment_id, weight):
    signals = dataclasses.replace(
        completion(SIX, turn_id=turn_id),
        sentence_id=torch.tensor([[0, 0, 1, 1, 1, 2]]),
        line_id=torch.tensor([[0, 1, 1, 1, 1, 1]]),
    )
    credit = FixedSpans(unit=unit, strength=1.0, span_tokens=1)(torch.tensor([-2.0]), signals)
    assert credit.segment_id[0].tolist() == segment_id
    assert credit.advantage[0].tolist() == pytest.approx([-2 * w for w in weight])


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


def by_the_loop(method, d, turns):
    """Spans and weights of one completion's trained tokens, one token after the other."""
    ids = []
    for t, turn in enumerate(turns):
        begins = t == 0 or turn != turns[t - 1]
        full = not begins and method.unit == "tokens" and ids.count(ids[-1]) == method.span_tokens
        ids.append((ids[-1] if ids else -1) + (begins or full))
    mean = sum(d) / max(len(d), 1)
    weight = []
    for i in ids:
        inside = [x for x, j in zip(d, ids, strict=True) if j == i]
        share = sum(inside) / len(inside) / mean if mean > 0 else 1.0
        weight.append(1 - method.strength + method.strength * share)
    return ids, weight


@PROPERTY
@given(
    written(),
    st.builds(
        FixedSpans,
        unit=st.sampled_from(["tokens", "tokens", "sentence", "line", "turn"]),
        span_tokens=st.integers(1, 5),
        strength=st.sampled_from([0.5, 1.0]),
    ),
)
def test_agrees_with_the_loop(signals, method):
    """A unit of the text or a turn begins the next span."""
    credit = method(torch.ones(3), signals)
    for b, counts in enumerate(signals.mask):
        turns = turns_of(signals)[b][counts].tolist()
        own = {"sentence": signals.sentence_id, "line": signals.line_id}.get(method.unit)
        if own is not None:
            turns = list(zip(turns, own[b][counts].tolist(), strict=True))
        ids, weight = by_the_loop(method, signals.divergence[b][counts].tolist(), turns)
        assert credit.segment_id[b][counts].tolist() == ids
        assert credit.advantage[b][counts].tolist() == pytest.approx(weight, abs=1e-6)
