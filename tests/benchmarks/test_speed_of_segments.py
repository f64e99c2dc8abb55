"""python -m benchmarks segments: the loop is the definition, and a bench of wrong results is none."""

import pytest
import torch

from benchmarks import segments
from benchmarks.segments import bench_segments, by_loop, segmentation, signals


def test_the_loop_by_hand():
    level = torch.tensor([[0.1, 0.9, 0.2, 0.3, 0.0, 0.8, 0.1]])
    entropy = torch.tensor([[0.0, 0.0, 0.0, 2.0, 0.0, 0.0, 0.0]])
    mask = torch.tensor([[True, True, True, True, False, True, True]])
    turn = torch.tensor([[0, 0, 0, 0, -1, 1, 1]])
    # The onset at 1 is continued by 2 and closed by the fork at 3; the next turn opens with an onset of its own.
    ids, values = by_loop(level, entropy, mask, turn)
    assert ids == [[0, 1, 1, 2, -1, 3, 3]]
    assert torch.tensor(values).tolist() == torch.tensor([[0.1, 0.9, 0.9, 0.3, 0.0, 0.8, 0.8]]).tolist()


def test_the_segmentation_is_the_loop_s():
    level, entropy, mask, turn = signals(rows=5, tokens=1500)
    ids, value = segmentation(level, entropy, mask, turn)
    assert (ids.tolist(), value.tolist()) == by_loop(level, entropy, mask, turn)
    assert ids.max() > 100 and (turn.amax(-1) > 0).any() and not mask.all()


def test_every_speed_is_there_and_the_ratios_are_theirs():
    found = bench_segments(rows=6, tokens=200, repeats=2, loop_rows=2)
    speed = found["mtokens_per_second"]
    assert set(speed) == {
        "limit", "local_maxima", "segment_ids", "at_segment_start", "segmentation", "gear", "python_loop"
    }  # fmt: skip
    assert all(0 < found["least"][name] <= value + 0.01 for name, value in speed.items())
    assert found["over_python_loop"] == pytest.approx(speed["segmentation"] / speed["python_loop"], abs=0.1)
    assert found["over_limit"] == pytest.approx(speed["limit"] / speed["segmentation"], rel=0.1)


def test_wrong_results_are_no_bench(monkeypatch):
    monkeypatch.setattr(segments, "segment_ids", lambda onset, boundary, mask: torch.zeros_like(mask).long())
    with pytest.raises(RuntimeError, match="do not agree"):
        bench_segments(rows=4, tokens=100)


@pytest.mark.parametrize("field", ["rows", "tokens", "repeats", "loop_rows"])
def test_an_empty_size_is_refused(field):
    with pytest.raises(ValueError, match=f"{field}: 0; give 1 or more"):
        bench_segments(**({"rows": 2, "tokens": 20} | {field: 0}))
