"""Tensors as Python lists, with the types that torch does not declare."""

from typing import cast

from torch import Tensor


def int_list(x: Tensor) -> list[int]:
    """The numbers of a one-dimensional integer tensor.

    >>> import torch
    >>> int_list(torch.tensor([2, 3]))
    [2, 3]
    """
    return cast(list[int], x.tolist())  # pyright: ignore[reportUnknownMemberType]


def float_list(x: Tensor) -> list[float]:
    """The numbers of a one-dimensional floating-point tensor.

    >>> import torch
    >>> float_list(torch.tensor([0.5]))
    [0.5]
    """
    return cast(list[float], x.tolist())  # pyright: ignore[reportUnknownMemberType]
