"""``fold`` of ``fold.py`` as one Triton kernel: each logit is read once and no tile is written.

The one file of this package that needs a library beside torch: triton, which comes with torch's CUDA builds and
is imported only when a tile is folded. Knows no head, no model, no trainer and no method.
"""
# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false, reportUnknownArgumentType=false
# pyright: reportUntypedFunctionDecorator=false

from functools import cache
from typing import Any, no_type_check

import torch
from jaxtyping import Float, Float64
from torch import Tensor

_BLOCK = 2048
"""Logits that a program reads at a time; each lane has sums of its own until the tile ends."""


def fold_triton(
    sums: Float64[Tensor, "8 N"],
    logits_NV: Float[Tensor, "N V"],
    teacher_NV: Float[Tensor, "N V"] | None,
    block: int = _BLOCK,
) -> None:
    """Take up one tile of logits into the sums, in place; the tiles are only read.

    What ``fold`` does, but in float32, and the lanes of a row are summed apart and joined at the end of the tile.
    Triton must be installed, and the tensors be on its device or in its interpreter (``TRITON_INTERPRET=1``).
    Rows of a tile are ``teacher_NV.stride(0)`` apart, its columns are neighbours.
    """
    num_tokens, width = logits_NV.shape
    if num_tokens == 0:
        return
    taught = teacher_NV is not None
    teacher = teacher_NV if teacher_NV is not None else logits_NV
    moved = sums.to(torch.float32, memory_format=torch.contiguous_format)
    _kernel()[(num_tokens,)](
        moved,
        logits_NV,
        teacher,
        width,
        moved.stride(0),
        logits_NV.stride(0),
        teacher.stride(0),
        TAUGHT=taught,
        BLOCK=block,
        num_warps=8,
    )
    sums.copy_(moved)


@cache
@no_type_check
def _kernel() -> Any:
    import triton
    import triton.language as tl

    @triton.jit
    @no_type_check
    def kernel(
        sums, logits, teacher, width, sums_stride, stride, stride_t, TAUGHT: tl.constexpr, BLOCK: tl.constexpr
    ):
        row = tl.program_id(0).to(tl.int64)
        logits += row * stride
        teacher += row * stride_t
        sums += row
        lane = tl.arange(0, BLOCK)
        # A finite start: -inf - -inf would be NaN in a lane that has seen nothing yet.
        top = tl.full((BLOCK,), -1e30, tl.float32)
        mass = tl.zeros((BLOCK,), tl.float32)
        own = tl.zeros((BLOCK,), tl.float32)
        top_t = tl.full((BLOCK,), -1e30, tl.float32)
        mass_t = tl.zeros((BLOCK,), tl.float32)
        other = tl.zeros((BLOCK,), tl.float32)
        for begin in range(0, width, BLOCK):
            column = begin + lane
            inside = column < width
            x = tl.load(logits + column, mask=inside, other=-1e30)
            new_top = tl.maximum(top, x)
            shift = top - new_top
            shrink = tl.exp(shift)
            centred = tl.where(inside, x - new_top, 0.0)
            weight = tl.where(inside, tl.exp(centred), 0.0)
            own = shrink * (own + mass * shift) + weight * centred
            if TAUGHT:
                z = tl.load(teacher + column, mask=inside, other=-1e30)
                new_top_t = tl.maximum(top_t, z)
                shift_t = top_t - new_top_t
                centred_t = tl.where(inside, z - new_top_t, 0.0)
                other = shrink * (other + mass * shift_t) + weight * centred_t
                mass_t = tl.exp(shift_t) * mass_t + tl.where(inside, tl.exp(centred_t), 0.0)
                top_t = new_top_t
            mass = shrink * mass + weight
            top = new_top
        # The lanes' sums and those of the tiles before, all moved to one largest logit. In a lane that saw
        # nothing every sum is 0 and its shift finite, so it adds 0.
        old_top = tl.load(sums)
        old_mass = tl.load(sums + sums_stride)
        old_own = tl.load(sums + 2 * sums_stride)
        end_top = tl.maximum(old_top, tl.max(top, 0))
        shift = top - end_top
        old_shift = tl.where(old_mass > 0, old_top - end_top, 0.0)
        shrink = tl.exp(shift)
        old_shrink = tl.exp(old_shift)
        end_mass = old_shrink * old_mass + tl.sum(shrink * mass, 0)
        end_own = old_shrink * (old_own + old_mass * old_shift) + tl.sum(shrink * (own + mass * shift), 0)
        tl.store(sums, end_top)
        tl.store(sums + sums_stride, end_mass)
        tl.store(sums + 2 * sums_stride, end_own)
        if TAUGHT:
            old_top_t = tl.load(sums + 3 * sums_stride)
            old_mass_t = tl.load(sums + 4 * sums_stride)
            old_other = tl.load(sums + 5 * sums_stride)
            end_top_t = tl.maximum(old_top_t, tl.max(top_t, 0))
            shift_t = top_t - end_top_t
            old_shift_t = tl.where(old_mass_t > 0, old_top_t - end_top_t, 0.0)
            end_mass_t = tl.exp(old_shift_t) * old_mass_t + tl.sum(tl.exp(shift_t) * mass_t, 0)
            end_other = old_shrink * (old_other + old_mass * old_shift_t)
            end_other += tl.sum(shrink * (other + mass * shift_t), 0)
            tl.store(sums + 3 * sums_stride, end_top_t)
            tl.store(sums + 4 * sums_stride, end_mass_t)
            tl.store(sums + 5 * sums_stride, end_other)

    return kernel
