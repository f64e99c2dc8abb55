"""Cut a completion into segments of credit.

An *onset* is a token where the student departs from the teacher. A *boundary* is a token that closes the
segment an onset opened. Both are masks; this module turns them into segment ids, without a loop over tokens.
It does not know which signal an onset came from.
"""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

_BLOCK = 1 << 16
"""Tokens that a CPU takes at a time: the temporaries of so many stay in a core's cache (three times as fast)."""


def turn_ids(mask: Bool[Tensor, "B T"]) -> Int[Tensor, "B T"]:
    """Number the turns of each completion from 0; -1 outside the mask.

    A turn is a maximal run of sampled tokens: any masked token between two runs parts them.

    >>> turn_ids(torch.tensor([[True, True, False, False, True]]))
    tensor([[ 0,  0, -1, -1,  1]])
    """
    begins = mask & ~_previous(mask, fill=False)
    return torch.where(mask, begins.cumsum(-1) - 1, -1)


def segment_ids(
    onset: Bool[Tensor, "B T"],
    boundary: Bool[Tensor, "B T"],
    mask: Bool[Tensor, "B T"],
    max_tokens: int | None = None,
) -> Int[Tensor, "B T"]:
    """Number the segments of each completion from 0, left to right; -1 outside the mask.

    A token opens a segment of its own unless it *continues* one: an onset stands before it, and no boundary
    nor masked token lies between. An onset always opens a new segment, also where a boundary stands on the
    same token. Aligned regions therefore keep token resolution, and each departure gathers its continuation
    (GEAR, arXiv:2605.11853, Figure 1). A segment that an onset opened ends after ``max_tokens`` tokens.

    >>> onset    = torch.tensor([[0, 1, 0, 0, 0, 1]], dtype=torch.bool)
    >>> boundary = torch.tensor([[0, 0, 0, 0, 1, 0]], dtype=torch.bool)
    >>> segment_ids(onset, boundary, mask=torch.ones_like(onset))
    tensor([[0, 1, 1, 1, 2, 3]])
    """
    if max_tokens is not None and max_tokens < 1:
        raise ValueError(f"max_tokens: {max_tokens} is too short; a segment has at least 1 token")

    def number(onset: Tensor, boundary: Tensor, mask: Tensor) -> Tensor:
        position = torch.arange(onset.shape[-1], device=onset.device, dtype=torch.int32).expand(onset.shape)
        opens = onset & mask  # a masked onset closes: it cannot be continued
        # The latest token that opened or closed a segment, at or before each position: twice its place, and 1
        # more where it opened one. A boundary on an onset does not close, and a masked token always does.
        latest = _running_max(torch.where(onset | boundary | ~mask, 2 * position + opens, -2))
        continues = (latest & 1).bool() & ~onset
        if max_tokens is not None:
            continues &= position - (latest >> 1) < max_tokens
        ids = (mask & ~continues).cumsum(-1, dtype=torch.int32) - 1
        return torch.where(mask, ids, -1)

    return _by_rows(number, torch.int64, onset, boundary, mask)


def segment_starts(segment_id: Int[Tensor, "B T"]) -> Bool[Tensor, "B T"]:
    """True on the first token of every segment.

    >>> segment_starts(torch.tensor([[0, 1, 1, -1]]))
    tensor([[ True,  True, False, False]])
    """

    def starts(segment_id: Tensor) -> Tensor:
        return (segment_id >= 0) & (segment_id != _previous(segment_id, fill=-1))

    return _by_rows(starts, torch.bool, segment_id)


def at_segment_start(x: Float[Tensor, "B T"], segment_id: Int[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """Give every token the value that ``x`` has at the first token of its segment; 0 outside.

    >>> x = torch.tensor([[0.1, 2.0, 0.3, 0.4]])
    >>> at_segment_start(x, torch.tensor([[0, 1, 1, -1]]))
    tensor([[0.1000, 2.0000, 2.0000, 0.0000]])
    """

    def spread(x: Tensor, segment_id: Tensor) -> Tensor:
        position = torch.arange(x.shape[-1], device=x.device, dtype=torch.int32).expand(x.shape)
        start = _running_max(torch.where(segment_starts(segment_id), position, 0))
        return torch.where(segment_id >= 0, x.gather(-1, start.long()), 0.0)

    return _by_rows(spread, x.dtype, x, segment_id)


def segment_lengths(segment_id: Int[Tensor, "B T"]) -> Int[Tensor, "B T"]:
    """How many tokens the segment of each token has; 0 outside.

    >>> segment_lengths(torch.tensor([[0, 1, 1, -1]]))
    tensor([[1, 2, 2, 0]])
    """
    inside = segment_id >= 0
    # One bin per possible id and one, at the end, for the tokens outside.
    bin_of = torch.where(inside, segment_id, segment_id.shape[-1])
    counts = segment_id.new_zeros(segment_id.shape[0], segment_id.shape[-1] + 1)
    counts.scatter_add_(-1, bin_of, torch.ones_like(segment_id))
    return torch.where(inside, counts.gather(-1, bin_of), 0)


def local_maxima(x: Float[Tensor, "B T"], turn_id: Int[Tensor, "B T"]) -> Bool[Tensor, "B T"]:
    """True where ``x`` is not below its neighbours of the same turn and above at least one of them.

    A token whose neighbour is missing or belongs to another turn counts that neighbour as minus infinity; so
    a turn of one token is a maximum, and no token in the middle of a plateau is (arXiv:2605.11853, our reading
    of "KL peaks").

    >>> x = torch.tensor([[1.0, 3.0, 2.0, 2.0, 5.0]])
    >>> local_maxima(x, torch.tensor([[0, 0, 0, 0, 1]]))
    tensor([[False,  True, False,  True,  True]])
    """
    if x.shape[-1] == 0:
        return torch.zeros_like(x, dtype=torch.bool)

    def peaks(x: Tensor, turn_id: Tensor) -> Tensor:
        same = turn_id[:, 1:] == turn_id[:, :-1]
        left, right = torch.full_like(x, -torch.inf), torch.full_like(x, -torch.inf)
        left[:, 1:] = torch.where(same, x[:, :-1], -torch.inf)
        right[:, :-1] = torch.where(same, x[:, 1:], -torch.inf)
        return (x >= left) & (x >= right) & ((x > left) | (x > right)) & (turn_id >= 0)

    return _by_rows(peaks, torch.bool, x, turn_id)


def _running_max(position: Int[Tensor, "B T"]) -> Int[Tensor, "B T"]:
    # cummax refuses an empty last dimension.
    return position.cummax(-1).values if position.shape[-1] else position


def _previous(x: Tensor, fill: float | bool | int) -> Tensor:
    """The value one token earlier in the row; ``fill`` for the first token."""
    shifted = torch.full_like(x, fill)
    shifted[:, 1:] = x[:, :-1]
    return shifted


def _by_rows(f: Callable[..., Tensor], dtype: torch.dtype, x: Tensor, *more: Tensor) -> Tensor:
    """``f`` of tensors of one shape (B, T), each row for itself; on a CPU a block of rows at a time."""
    rows = max(1, _BLOCK // max(x.shape[-1], 1))
    if x.device.type != "cpu" or x.shape[0] <= rows or x.requires_grad:
        return f(x, *more).to(dtype)
    out = torch.empty(x.shape, dtype=dtype)
    for begin in range(0, x.shape[0], rows):
        out[begin : begin + rows] = f(x[begin : begin + rows], *(y[begin : begin + rows] for y in more))
    return out
