"""On a CPU rows are taken in blocks: where one ends changes nothing."""

import pytest
import torch

from gear_rl.tensor import segments
from gear_rl.tensor.segments import at_segment_start, local_maxima, segment_ids, segment_starts


def everything(num_rows, seed=0):
    seeded = torch.Generator().manual_seed(seed)

    def drawn(share):
        return torch.rand(num_rows, 11, generator=seeded) < share

    mask, onset, boundary, x = drawn(0.8), drawn(0.2), drawn(0.2), torch.randn(num_rows, 11, generator=seeded)
    turn = torch.where(mask, drawn(0.1).cumsum(-1), -1)
    ids = segment_ids(onset, boundary, mask, max_tokens=3)
    return [ids, segment_starts(ids), at_segment_start(x, ids), local_maxima(x, turn)]


@pytest.mark.parametrize("num_rows", [1, 2, 3, 4, 5, 7])
@pytest.mark.parametrize("block", [1, 11, 22, 33])
def test_blocks_of_rows_change_nothing(monkeypatch, num_rows, block):
    whole = everything(num_rows)
    monkeypatch.setattr(segments, "_BLOCK", block)
    for found, expected in zip(everything(num_rows), whole, strict=True):
        assert found.dtype == expected.dtype and torch.equal(found, expected)


def test_a_gradient_still_flows_to_the_values(monkeypatch):
    monkeypatch.setattr(segments, "_BLOCK", 1)
    x = torch.arange(6.0).view(2, 3).requires_grad_()
    at_segment_start(x, torch.tensor([[0, 0, 1], [0, -1, 1]])).sum().backward()
    assert x.grad.tolist() == [[2.0, 0.0, 1.0], [1.0, 0.0, 1.0]]
