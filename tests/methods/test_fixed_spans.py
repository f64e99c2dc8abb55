"""Fixed spans: mean divergences of spans over that of the completion, worked by hand."""

import dataclasses

import pytest
import torch

from gear_rl.methods import FixedSpans
from methods.completions import completion

SIX = [1, 3, 0, 0, 2, 6]
"""Mean 2. In twos: means 2, 0, 4. In fours: 1 (of 1, 3, 0, 0) and 4 (of 2, 6)."""


@pytest.mark.parametrize(
    ("method", "segment_id", "weight"),
    [
        (FixedSpans(span_tokens=2, strength=1.0), [0, 0, 1, 1, 2, 2], [1, 1, 0, 0, 2, 2]),
        (FixedSpans(span_tokens=2), [0, 0, 1, 1, 2, 2], [1, 1, 0.5, 0.5, 1.5, 1.5]),
        (FixedSpans(span_tokens=1, strength=1.0), [0, 1, 2, 3, 4, 5], [0.5, 1.5, 0, 0, 1, 3]),
        (FixedSpans(), [0] * 6, [1] * 6),
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
        # turns of three tokens in spans of two
        ("tokens", [0, 0, 0, 1, 1, 1], [0, 0, 1, 2, 2, 3], [1, 1, 0, 0.5, 0.5, 3]),
    ],
)
def test_spans_of_the_text(unit, turn_id, segment_id, weight):
    signals = dataclasses.replace(
        completion(SIX, turn_id=turn_id),
        sentence_id=torch.tensor([[0, 0, 1, 1, 1, 2]]),
        line_id=torch.tensor([[0, 1, 1, 1, 1, 1]]),
    )
    credit = FixedSpans(unit=unit, strength=1.0, span_tokens=2)(torch.tensor([-2.0]), signals)
    assert credit.segment_id[0].tolist() == segment_id
    assert credit.advantage[0].tolist() == pytest.approx([-2 * w for w in weight])
