"""What one pass over the vocabulary keeps of each token, and how a tile of logits is taken up into it.

A distribution is known by its largest logit so far, the sum of ``exp(logit - largest)`` and sums of those
weights times centred logits; all are moved when the largest logit moves. Centred, because a small divergence
must not be the difference of two large numbers. In float64, because a tile adds to what hundreds of tiles
have added before; within a tile everything is float32. Two ways to take up a tile live here, plain PyTorch and
``torch.compile``; ``fold_triton.py`` is the third. Knows no head, no model, no trainer and no method.
"""

from collections.abc import Callable
from functools import cache
from inspect import unwrap
from typing import cast

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

TOP, MASS, OWN, TOP_T, MASS_T, OTHER, SAMPLED, SAMPLED_T = range(8)
"""Rows of the sums. Of the student: its largest logit, its mass, the sum of weight times its own centred logit;
of the teacher: largest logit, mass; the sum of the student's weights times the teacher's centred logits; and the
logit of the sampled token, of both."""

_NO_COMPILER = (
    "compiled: torch.compile could not build the fold ({reason}); install a C++ compiler (g++ or clang++, with "
    "CXX set to its path if it is not found) and the headers of Python, or leave compiled=False"
)


def empty_sums(num_tokens: int, device: torch.device) -> Float64[Tensor, "8 N"]:
    """The sums over no vocabulary at all, float64; float32 on Apple's GPUs, which have no other.

    >>> empty_sums(1, torch.device("cpu"))[TOP:OWN, 0].tolist()
    [-inf, 0.0]
    """
    kind = torch.float32 if device.type == "mps" else torch.float64
    sums = torch.zeros(8, num_tokens, dtype=kind, device=device)
    sums[TOP] = sums[TOP_T] = -torch.inf
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
    sums[row] = _sampled(logits_NV, place_N, sums[row])


def _sampled(logits: Tensor, place: Tensor, before: Tensor) -> Tensor:
    width = logits.shape[1]
    here = (place >= 0) & (place < width)
    return torch.where(here, logits.gather(-1, place.clamp(0, width - 1)[:, None])[:, 0].to(before), before)


def fold(
    sums: Float64[Tensor, "8 N"],
    logits_NV: Float[Tensor, "N V"],
    teacher_NV: Float[Tensor, "N V"] | None,
    spare_NV: Float[Tensor, "N V"],
) -> None:
    """Take up one tile of logits into the sums, in place. The three tiles hold nothing of use afterwards.

    Each line that touches a tile is one or two passes over it and makes no other; the rest are as long as the
    tokens.

    >>> sums, spare = empty_sums(1, torch.device("cpu")), torch.empty(1, 2)
    >>> for logit in (0.0, 1.0):
    ...     fold(sums, torch.full((1, 2), logit), None, spare)
    >>> sums[MASS].div(2).log().float()  # 1 + exp(-1)
    tensor([0.3133])
    """
    top, mass, own, top_t, mass_t, other = sums[:SAMPLED]
    new_top = torch.maximum(top, logits_NV.amax(-1))
    # In the first tile there is nothing to rescale, and -inf - x would make 0 * inf.
    shift = torch.where(mass > 0, top - new_top, 0.0)
    shrink = shift.exp()
    weight = torch.exp(logits_NV.sub_(new_top[:, None].float()), out=spare_NV)
    own.add_(mass * shift).mul_(shrink).add_(logits_NV.mul_(weight).sum(-1))
    if teacher_NV is not None:
        new_top_t = torch.maximum(top_t, teacher_NV.amax(-1))
        shift_t = torch.where(mass_t > 0, top_t - new_top_t, 0.0)
        weight_t = torch.exp(teacher_NV.sub_(new_top_t[:, None].float()), out=logits_NV)
        mass_t.mul_(shift_t.exp()).add_(weight_t.sum(-1))
        other.add_(mass * shift_t).mul_(shrink).add_(teacher_NV.mul_(weight).sum(-1))
        top_t.copy_(new_top_t)
    mass.mul_(shrink).add_(weight.sum(-1))
    top.copy_(new_top)


def reverse_divergence(sums: Float64[Tensor, "8 N"]) -> Float64[Tensor, " N"]:
    """KL(student || teacher) of sums over the whole vocabulary, in nats; rounding may leave it just below 0.

    >>> sums = empty_sums(1, torch.device("cpu"))
    >>> even = torch.zeros(1, 2)  # one half each; the student has 4/5 and 1/5
    >>> fold(sums, torch.tensor([[3.0, 0.0]]).log1p(), even, torch.empty(1, 2))
    >>> reverse_divergence(sums).float()
    tensor([0.1927])
    """
    return sums[OWN] / sums[MASS] - sums[OTHER] / sums[MASS] - sums[MASS].log() + sums[MASS_T].log()


def fold_compiled(
    sums: Float64[Tensor, "8 N"],
    logits_NV: Float[Tensor, "N V"],
    teacher_NV: Float[Tensor, "N V"] | None,
    place_N: Int[Tensor, " N"],
) -> None:
    """``fold`` and ``note_sampled`` by ``torch.compile``, in two passes over the tiles and without the spare one.

    The tiles are only read.
    It is built once for each of its two forms, with and without a teacher, and once more for tiles of one token,
    of one column, or of more than 4096; no other shape builds it again. torch keeps the result on disk for the
    next process.
    Raises ``RuntimeError`` where nothing can be compiled, as without a C++ compiler.
    """
    # A copy: torch would build one form for sums of their own and another for a slice of more tokens' sums.
    moved = sums.clone(memory_format=torch.contiguous_format)
    try:
        sums.copy_(_compiled()(moved, logits_NV, teacher_NV, place_N))
    except Exception as error:
        # Which exception it is differs from release to release: Inductor's own, or one that wraps it.
        name, module = type(error).__name__, type(error).__module__
        if name != "BackendCompilerFailed" and not module.startswith("torch._inductor"):
            raise
        reason = " ".join(str(error).split())[:200]
        raise RuntimeError(_NO_COMPILER.format(reason=reason)) from error


@cache
def _compiled() -> Callable[[Tensor, Tensor, Tensor | None, Tensor], Tensor]:
    # Dynamic from the start: the last tile of the tokens and of the vocabulary is smaller than the others. Bare,
    # because a run-time type checker around the formula would be traced too, and its memory of sizes compared.
    compiled = torch.compile(unwrap(_folded), dynamic=True)  # pyright: ignore
    return cast(Callable[[Tensor, Tensor, Tensor | None, Tensor], Tensor], compiled)


def _folded(sums: Tensor, logits: Tensor, teacher: Tensor | None, place: Tensor) -> Tensor:
    """``fold`` as a formula: what a compiler turns into two loops over a row."""
    top, mass, own, top_t, mass_t, other, sampled, sampled_t = sums.unbind()
    at = unwrap(_sampled)
    new_top = torch.maximum(top, logits.amax(-1))
    shift = torch.where(mass > 0, top - new_top, 0.0)
    shrink = shift.exp()
    centred = logits - new_top[:, None].float()
    weight = centred.exp()
    new_own = shrink * (own + mass * shift) + (weight * centred).sum(-1)
    if teacher is not None:
        new_top_t = torch.maximum(top_t, teacher.amax(-1))
        shift_t = torch.where(mass_t > 0, top_t - new_top_t, 0.0)
        centred_t = teacher - new_top_t[:, None].float()
        other = shrink * (other + mass * shift_t) + (weight * centred_t).sum(-1)
        mass_t = shift_t.exp() * mass_t + centred_t.exp().sum(-1)
        top_t, sampled_t = new_top_t, at(teacher, place, sampled_t)
    new_mass, sampled = shrink * mass + weight.sum(-1), at(logits, place, sampled)
    return torch.stack([new_top, new_mass, new_own, top_t, mass_t, other, sampled, sampled_t])
