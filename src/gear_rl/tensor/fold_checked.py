"""A kernel in the place of ``fold``, for as long as it is right: its first tile is compared with the eager fold.

A kernel that a compiler of another release or another GPU breaks must not pass as signals. Knows no kernel of its
own, no head, no model, no trainer and no method.
"""

import warnings
from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from gear_rl.tensor.fold import OTHER, TOP, TOP_T, fold

Kernel = Callable[[Tensor, Tensor, Tensor | None], None]
"""Takes up one tile of logits into the sums in place, as ``fold`` does without its spare tile."""
ROUNDING = 1e-5
"""Of a sum's own size, and absolute (nats, or the weight of the largest logit): more than float32 sums over one
tile may differ by. One word left out of an open distribution of 16,384 makes six times as much."""
_ROWS = 128
"""Tokens that are folded eagerly at a time while comparing; the eager fold writes, so each needs a copy."""


class CheckedFold:
    """``fold`` by a kernel, whose first tile of each form, with and without a teacher, is made both ways.

    Where the two differ by more than rounding, or the kernel raises, one ``RuntimeWarning`` says so and the eager
    fold does this tile and all others, of either form. Tokens that neither way gives a finite sum agree. If no
    token of the tile is finite, the next tile is compared instead.

    >>> from gear_rl.tensor.fold import MASS, empty_sums
    >>> def lost(sums, logits, teacher):
    ...     sums.zero_()
    >>> checked = CheckedFold(lost)
    >>> sums = empty_sums(1, torch.device("cpu"))
    >>> with warnings.catch_warnings(action="ignore"):
    ...     checked(sums, torch.zeros(1, 3), None)
    >>> sums[MASS].tolist(), checked.dropped
    ([3.0], True)
    """

    def __init__(self, kernel: Kernel, name: str = "a kernel") -> None:
        self.dropped = False
        """True once the kernel has given a wrong sum."""
        self._kernel, self._name = kernel, name
        self._agreed: set[bool] = set()

    def __call__(
        self,
        sums: Float64[Tensor, "8 N"],
        logits_NV: Float[Tensor, "N V"],
        teacher_NV: Float[Tensor, "N V"] | None,
    ) -> None:
        """Take up one tile of logits into the sums, in place. The tiles hold nothing of use afterwards."""
        if self.dropped:
            fold(sums, logits_NV, teacher_NV, torch.empty_like(logits_NV))
        elif (teacher_NV is not None) in self._agreed:
            self._kernel(sums, logits_NV, teacher_NV)
        else:
            sums.copy_(self._compared(sums, logits_NV, teacher_NV))

    def _compared(self, sums: Tensor, logits: Tensor, teacher: Tensor | None) -> Tensor:
        """The eager fold's sums after this tile, and whether the kernel's are the same."""
        expected, actual = sums.clone(), sums.clone()
        for begin in range(0, len(logits), _ROWS):
            part = slice(begin, begin + _ROWS)
            other = None if teacher is None else teacher[part].clone()
            fold(expected[:, part], logits[part].clone(), other, torch.empty_like(logits[part]))
        try:
            self._kernel(actual, logits, teacher)
            same, finite = _agreement(actual, expected, taught=teacher is not None)
            what = (
                "" if bool(same.all()) else f"differs from it in {int((~same).sum())} of {len(same)} tokens"
            )
        except Exception as error:  # compilers and launches raise what they like
            what, finite = f"raised {type(error).__name__}: {' '.join(str(error).split())[:200]}", None
        if what:
            self.dropped = True
            warnings.warn(
                f"{self._name} was compared with the eager fold on its first tile and {what}; the eager fold is "
                "used from now on: the right numbers, more slowly. Please report this with the versions of torch "
                "and triton",
                RuntimeWarning,
                stacklevel=4,
            )
        elif finite is not None and bool(finite.any()):
            self._agreed.add(teacher is not None)
        return expected


def _agreement(
    actual: Float64[Tensor, "8 N"], expected: Float64[Tensor, "8 N"], taught: bool
) -> tuple[Bool[Tensor, " N"], Bool[Tensor, " N"]]:
    """Of each token whether the sums agree, and whether they are finite both ways."""
    # Without a teacher its rows are those of empty sums: minus infinity.
    rows = slice(TOP, OTHER + 1) if taught else slice(TOP, TOP_T)
    finite, of_eager = actual[rows].isfinite().all(0), expected[rows].isfinite().all(0)
    close = torch.isclose(actual, expected, rtol=ROUNDING, atol=ROUNDING, equal_nan=True).all(0)
    return torch.where(finite & of_eager, close, finite == of_eager), finite & of_eager
