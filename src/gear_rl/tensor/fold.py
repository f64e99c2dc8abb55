"""What one pass over the vocabulary keeps of each token, and how a tile of logits is added to it.

A distribution is known by its largest logit so far, the sum of ``exp(logit - largest)`` and sums of those weights
times centred logits; all are rescaled when the largest logit changes. Centred, because a small divergence must
not be the difference of two large numbers. The sums are float64, because hundreds of tiles are added to them;
within a tile everything is float32.
"""

from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from inspect import unwrap

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

TOP, MASS, OWN, TOP_T, MASS_T, OTHER, SAMPLED, SAMPLED_T = range(8)
"""Rows of the sums. Of the student: its largest logit, its mass, the sum of weight times its own centred logit;
of the teacher: largest logit, mass; the sum of the student's weights times the teacher's centred logits; and the
logit of the sampled token, of both."""


def empty_sums(num_tokens: int, device: torch.device) -> Float64[Tensor, "8 N"]:
    """The sums over no vocabulary at all, float64; float32 on Apple's GPUs, which have no other.

    The largest logit so far is a number, since a whole tile may be of impossible tokens, whose logits are -inf.

    >>> empty_sums(1, torch.device("cpu"))[MASS:OTHER, 0].tolist()
    [0.0, 0.0, -3.4028234663852886e+38, 0.0]
    """
    kind = torch.float32 if device.type == "mps" else torch.float64
    sums = torch.zeros(8, num_tokens, dtype=kind, device=device)
    sums[TOP] = sums[TOP_T] = torch.finfo(torch.float32).min
    return sums


def note_sampled(
    sums: Float64[Tensor, "8 N"],
    row: int,
    logits_NV: Float[Tensor, "N V"],
    place_N: Int[Tensor, " N"],
) -> None:
    """Keep in ``row`` the logit of the sampled token, where its place in this tile is one of the tile's.

    >>> sums = empty_sums(2, torch.device("cpu"))
    >>> note_sampled(sums, SAMPLED, torch.tensor([[5.0, 6.0], [7.0, 8.0]]), torch.tensor([1, -3]))
    >>> sums[SAMPLED].tolist()
    [6.0, 0.0]
    """
    width = logits_NV.shape[1]
    here = (place_N >= 0) & (place_N < width)
    sampled = logits_NV.gather(-1, place_N.clamp(0, width - 1)[:, None])[:, 0]
    sums[row] = torch.where(here, sampled.to(sums), sums[row])


def fold(
    sums: Float64[Tensor, "8 N"],
    logits_NV: Float[Tensor, "N V"],
    teacher_NV: Float[Tensor, "N V"] | None,
    *,
    padded: bool = False,
) -> None:
    """Add one tile of logits to the sums, in place.

    With ``padded`` a logit may be -inf, as a padded vocabulary's: 0 log 0 is 0. That costs time.

    On CUDA with Triton ``torch.compile`` runs the same function; ``TORCHDYNAMO_DISABLE=1`` turns that off.

    >>> sums = empty_sums(1, torch.device("cpu"))
    >>> for logit in (0.0, 1.0):
    ...     fold(sums, torch.full((1, 2), logit), None)
    >>> sums[MASS].div(2).log().float()  # 1 + exp(-1)
    tensor([0.3133])
    """
    run = _compiled_fold() if logits_NV.is_cuda and find_spec("triton") else _fold
    run(sums, logits_NV, teacher_NV, padded)


@cache
def _compiled_fold() -> Callable[..., None]:
    # Dynamic from the start: the last tiles are smaller than the others.
    return torch.compile(unwrap(_fold), dynamic=True)  # pyright: ignore


def _fold(sums: Tensor, logits_NV: Tensor, teacher_NV: Tensor | None, padded: bool = False) -> None:
    """Eager ``fold``, which leaves the tiles as they are: compiled, it then need not write them."""
    top, mass, own, top_t, mass_t, other = sums[:SAMPLED]
    new_top = torch.maximum(top, logits_NV.amax(-1))
    # In the first tile there is nothing to rescale.
    shift = torch.where(mass > 0, top - new_top, 0.0)
    shrink = shift.exp()
    centred = logits_NV - new_top[:, None].float()
    weight = centred.exp()
    impossible = weight == 0 if padded else None
    if impossible is not None:
        centred.masked_fill_(impossible, 0.0)
    own.add_(mass * shift).mul_(shrink).add_((centred * weight).sum(-1))
    if teacher_NV is not None:
        new_top_t = torch.maximum(top_t, teacher_NV.amax(-1))
        shift_t = torch.where(mass_t > 0, top_t - new_top_t, 0.0)
        centred_t = teacher_NV - new_top_t[:, None].float()
        mass_t.mul_(shift_t.exp()).add_(centred_t.exp().sum(-1))
        if impossible is not None:
            centred_t.masked_fill_(impossible, 0.0)
        other.add_(mass * shift_t).mul_(shrink).add_((centred_t * weight).sum(-1))
        top_t.copy_(new_top_t)
    mass.mul_(shrink).add_(weight.sum(-1))
    top.copy_(new_top)


def reverse_divergence(sums: Float64[Tensor, "8 N"]) -> Float64[Tensor, " N"]:
    """KL(student || teacher) of sums over the whole vocabulary, in nats; rounding may leave it just below 0.

    >>> sums = empty_sums(1, torch.device("cpu"))
    >>> even = torch.zeros(1, 2)  # one half each; the student has 4/5 and 1/5
    >>> fold(sums, torch.tensor([[3.0, 0.0]]).log1p(), even)
    >>> reverse_divergence(sums).float()
    tensor([0.1927])
    """
    return sums[OWN] / sums[MASS] - sums[OTHER] / sums[MASS] - sums[MASS].log() + sums[MASS_T].log()
