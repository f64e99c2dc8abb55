"""Cut a completion into segments of credit, without a loop over tokens.

An *onset* is a token where the student diverges from the teacher; a *boundary* closes the segment that an onset
opened.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


def turn_ids(mask: Bool[Tensor, "B T"]) -> Int[Tensor, "B T"]:
    """Number the turns of each completion from 0; -1 outside the mask.

    A turn is a maximal run of sampled tokens: any masked token between two runs parts them.

    >>> turn_ids(torch.tensor([[True, True, False, False, True]]))
    tensor([[ 0,  0, -1, -1,  1]])
    """
    begins = mask & ~_previous_values(mask, fill=False)
    return torch.where(mask, begins.cumsum(-1) - 1, -1)


def run_ids(number: Int[Tensor, "B T"], mask: Bool[Tensor, "B T"]) -> Int[Tensor, "B T"]:
    """Number the runs of equal numbers from 0; -1 outside the mask, where every run ends.

    >>> run_ids(torch.tensor([[7, 7, -1, 7, 7]]), torch.tensor([[True, True, True, False, True]]))
    tensor([[ 0,  0,  1, -1,  2]])
    """
    differs = (number != _previous_values(number, fill=-1)) | ~_previous_values(mask, fill=False)
    return torch.where(mask, (mask & differs).cumsum(-1) - 1, -1)


def segment_ids(
    onset: Bool[Tensor, "B T"],
    boundary: Bool[Tensor, "B T"],
    mask: Bool[Tensor, "B T"],
    max_tokens: int | None = None,
) -> Int[Tensor, "B T"]:
    """Number the segments of each completion from 0, left to right; -1 outside the mask.

    A token opens a segment of its own unless it *continues* one: an onset stands before it, and no boundary
    nor masked token lies between. An onset always opens a segment, also on a boundary (GEAR, arXiv:2605.11853,
    Figure 1). A segment that an onset opened ends after ``max_tokens`` tokens.

    >>> onset    = torch.tensor([[0, 1, 0, 0, 0, 1]], dtype=torch.bool)
    >>> boundary = torch.tensor([[0, 0, 0, 0, 1, 0]], dtype=torch.bool)
    >>> segment_ids(onset, boundary, mask=torch.ones_like(onset))
    tensor([[0, 1, 1, 1, 2, 3]])
    """
    position = _positions(mask)
    opens = onset & mask  # a masked onset closes: it cannot be continued
    # The latest token that opened or closed a segment, at or before each position: twice its place, and 1
    # more where it opened one. A boundary on an onset does not close, and a masked token always does.
    latest = _running_max(torch.where(onset | boundary | ~mask, 2 * position + opens, -2))
    continues = (latest & 1).bool() & ~onset
    if max_tokens is not None:
        continues &= position - (latest >> 1) < max_tokens
    return torch.where(mask, (mask & ~continues).cumsum(-1) - 1, -1)


def segment_starts(segment_id: Int[Tensor, "B T"]) -> Bool[Tensor, "B T"]:
    """True on the first token of every segment.

    >>> segment_starts(torch.tensor([[0, 1, 1, -1]]))
    tensor([[ True,  True, False, False]])
    """
    return (segment_id >= 0) & (segment_id != _previous_values(segment_id, fill=-1))


def at_segment_start(x: Float[Tensor, "B T"], segment_id: Int[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """Give every token the value that ``x`` has at the first token of its segment; 0 outside.

    >>> x = torch.tensor([[0.1, 2.0, 0.3, 0.4]])
    >>> at_segment_start(x, torch.tensor([[0, 1, 1, -1]]))
    tensor([[0.1000, 2.0000, 2.0000, 0.0000]])
    """
    start = _positions(segment_id) - since_segment_start(segment_id)
    return torch.where(segment_id >= 0, x.gather(-1, start), 0.0)


def since_segment_start(segment_id: Int[Tensor, "B T"]) -> Int[Tensor, "B T"]:
    """How many columns each token stands after the first one of its segment.

    >>> since_segment_start(torch.tensor([[0, 1, 1, 1]]))
    tensor([[0, 0, 1, 2]])
    """
    position = _positions(segment_id)
    return position - _running_max(torch.where(segment_starts(segment_id), position, 0))


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

    A neighbour that is missing or belongs to another turn counts as minus infinity: a turn of one token is a
    maximum, and no token in the middle of a plateau is.

    >>> x = torch.tensor([[1.0, 3.0, 2.0, 2.0, 5.0]])
    >>> local_maxima(x, torch.tensor([[0, 0, 0, 0, 1]]))
    tensor([[False,  True, False,  True,  True]])
    """
    same = turn_id[:, 1:] == turn_id[:, :-1]
    left, right = torch.full_like(x, -torch.inf), torch.full_like(x, -torch.inf)
    left[:, 1:] = torch.where(same, x[:, :-1], -torch.inf)
    right[:, :-1] = torch.where(same, x[:, 1:], -torch.inf)
    return (x >= left) & (x >= right) & ((x > left) | (x > right)) & (turn_id >= 0)


def _positions(x: Tensor) -> Int[Tensor, "B T"]:
    return torch.arange(x.shape[-1], device=x.device).expand(x.shape)


def _running_max(position: Int[Tensor, "B T"]) -> Int[Tensor, "B T"]:
    # cummax refuses an empty last dimension.
    return position.cummax(-1).values if position.shape[-1] else position


def _previous_values(x: Tensor, fill: float | bool | int) -> Tensor:
    """The value one token earlier in the row; ``fill`` for the first token."""
    shifted = torch.full_like(x, fill)
    shifted[:, 1:] = x[:, :-1]
    return shifted
