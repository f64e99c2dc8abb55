"""Log-probabilities, entropies and divergences from hidden states, in tiles: no (B, T, V) tensor ever exists.

This is also the one place that turns *predicting positions* into *emitted tokens*: the hidden state at
position ``s`` predicts the token at ``s + 1``, so a completion of ``T`` tokens is predicted by the ``T``
positions before its last one. Knows no model, no trainer and no method: it is handed hidden states and a head.
"""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor

from gear_rl.tensor.fold import (
    MASS,
    MASS_T,
    OWN,
    SAMPLED,
    SAMPLED_T,
    TOP,
    TOP_T,
    empty_sums,
    fold,
    note_sampled,
    reverse_divergence,
)

_TILE = {"cpu": (512, 2**19, 2**21), "cuda": (4096, 2**26, 2**26)}
"""Tokens, logits and weights of one tile at most. On CUDA two tiles are 512 MiB (computed, not measured)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """A language-model head: how hidden states become the logits that the policy samples from.

    ``logit = softcap(scale * (hidden @ weight.T + bias)) / temperature``, in float32. Raises ``ValueError``
    for a temperature or soft-cap that is not positive.

    >>> head = Head(weight_VD=torch.eye(2), temperature=0.5)
    >>> head.logits(torch.tensor([[1.0, 0.0]]))
    tensor([[2., 0.]])
    """

    weight_VD: Float[Tensor, "V D"]
    bias_V: Float[Tensor, " V"] | None = None
    scale: float = 1.0
    """Factor on the raw logits (Cohere multiplies, Granite divides)."""
    softcap: float | None = None
    """Logits are bent into (-softcap, softcap) by tanh, as Gemma 2 does; None for no cap."""
    temperature: float = 1.0
    """The sampling temperature; the same for student and teacher."""

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise ValueError(f"temperature: {self.temperature} must be positive; greedy has no distribution")
        if self.softcap is not None and not self.softcap > 0:
            raise ValueError(f"softcap: {self.softcap} must be positive; give None for no soft-cap")

    def logits(self, hidden_ND: Float[Tensor, "N D"], begin: int = 0, end: int | None = None) -> Tensor:
        """Float32 logits of the vocabulary slice ``begin:end``, shape (N, end - begin).

        The product itself yields float32: bfloat16 logits would drown the small divergences that an onset
        threshold looks at (the error reaches 5e-3 nats where the median KL is 2e-3).
        """
        weight = self.weight_VD[begin:end]
        if hidden_ND.is_cuda and hidden_ND.dtype != torch.float32 and weight.dtype == hidden_ND.dtype:
            logits = torch.mm(hidden_ND, weight.t(), out_dtype=torch.float32)
        else:
            logits = hidden_ND.float() @ weight.float().t()
        if self.bias_V is not None:
            logits = logits + self.bias_V[begin:end].float()
        if self.scale != 1.0:
            logits = logits * self.scale
        if self.softcap is not None:
            logits = torch.tanh(logits / self.softcap) * self.softcap
        return logits if self.temperature == 1.0 else logits / self.temperature

    def clone(self) -> "Head":
        """A copy with weights of its own."""
        bias = None if self.bias_V is None else self.bias_V.clone()
        return replace(self, weight_VD=self.weight_VD.clone(), bias_V=bias)

    def for_teacher(self, teacher_head: "Head | None") -> "Head":
        """The teacher's head: its own, or else this one.

        Raises ``ValueError`` unless it is over the same vocabulary, at the same temperature.

        >>> head = Head(weight_VD=torch.eye(2))
        >>> head.for_teacher(None) is head
        True
        """
        if teacher_head is None:
            return self
        for field, own, other in (
            ("vocabulary", self.weight_VD.shape[0], teacher_head.weight_VD.shape[0]),
            ("temperature", self.temperature, teacher_head.temperature),
        ):
            if own != other:
                raise ValueError(f"teacher_head: {field} {other}, but the student has {own}; use the same")
        return teacher_head


class TiledHead:
    """A head whose logits are written into buffers that are already there, with no gradient.

    ``logits`` gives what ``Head.logits`` gives of hidden states that went through ``operand``. A weight of low
    precision that torch cannot multiply into float32 is cast to float32, tile by tile, and only once where
    student and teacher need the same tile one after the other.

    >>> tiled = TiledHead(Head(weight_VD=torch.eye(2), scale=3.0))
    >>> tiled.logits(torch.empty(2), tiled.operand(torch.tensor([[1.0, 2.0]])), 0, 2)
    tensor([[3., 6.]])
    """

    def __init__(self, head: Head) -> None:
        self.head = head
        self._space: Tensor | None = None
        self._cast: tuple[tuple[int, int], Tensor] | None = None

    def operand(self, hidden_ND: Float[Tensor, "N D"]) -> Float[Tensor, "N D"]:
        """The hidden states as the product reads them: on CUDA of the weight's own precision, else float32."""
        direct = hidden_ND.is_cuda and hidden_ND.dtype == self.head.weight_VD.dtype
        return hidden_ND if direct else hidden_ND.float()

    def logits(
        self, buffer: Float[Tensor, " C"], hidden_ND: Float[Tensor, "N D"], begin: int, end: int
    ) -> Float[Tensor, "N K"]:
        """Float32 logits of the vocabulary slice ``begin:end`` in the first numbers of the buffer."""
        head = self.head
        out = buffer[: len(hidden_ND) * (end - begin)].view(len(hidden_ND), end - begin)
        if hidden_ND.dtype == torch.float32:
            torch.mm(hidden_ND, self._weight(begin, end).t(), out=out)
        else:
            torch.mm(hidden_ND, head.weight_VD[begin:end].t(), out_dtype=torch.float32, out=out)
        if head.bias_V is not None:
            out.add_(head.bias_V[begin:end])
        if head.scale != 1.0:
            out.mul_(head.scale)
        if head.softcap is not None:
            out.div_(head.softcap).tanh_().mul_(head.softcap)
        return out if head.temperature == 1.0 else out.div_(head.temperature)

    def _weight(self, begin: int, end: int) -> Tensor:
        """A slice of the weight in float32; the last one that was cast is kept."""
        weight = self.head.weight_VD[begin:end]
        if weight.dtype == torch.float32:
            return weight
        if self._cast is None or self._cast[0] != (begin, end):
            if self._space is None or self._space.numel() < weight.numel():
                self._space = weight.new_empty(weight.numel(), dtype=torch.float32)
            self._cast = (begin, end), self._space[: weight.numel()].view(weight.shape).copy_(weight)
        return self._cast[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenStatistics:
    """What one pass over the vocabulary gives of each token, in nats; None where it was not requested."""

    student_logprob: Float[Tensor, " N"]
    student_entropy: Float[Tensor, " N"]
    teacher_logprob: Float[Tensor, " N"] | None = None
    divergence: Float[Tensor, " N"] | None = None


def predicting_positions(hidden_BSD: Float[Tensor, "B S D"], num_tokens: int) -> Float[Tensor, "B T D"]:
    """The hidden states that predict the last ``num_tokens`` tokens of each sequence, in their order.

    The only shift by one in the package. Raises ``ValueError`` if nothing stands before the first of them:
    a completion needs at least one prompt token.

    >>> predicting_positions(torch.arange(4.0).view(1, 4, 1), num_tokens=2).flatten()
    tensor([1., 2.])
    """
    length = hidden_BSD.shape[1]
    if num_tokens >= length:
        raise ValueError(
            f"num_tokens: {num_tokens} tokens of a sequence of {length} cannot all be predicted; "
            "give every completion a prompt of at least one token"
        )
    return hidden_BSD[:, length - num_tokens - 1 : length - 1]


@torch.no_grad()
def token_statistics(
    student_ND: Float[Tensor, "N D"],
    token_N: Int[Tensor, " N"],
    head: Head,
    teacher_ND: Float[Tensor, "N E"] | None = None,
    teacher_head: Head | None = None,
    token_tile: int | None = None,
    vocab_tile: int | None = None,
) -> TokenStatistics:
    """Log-prob and entropy of every token, and with a teacher its log-prob and KL(student || teacher).

    Exact over the whole vocabulary, float32, in one pass: the sums are float64, updated tile by tile, and centred
    on the running maximum, so that a small divergence is not the difference of two large numbers. Three tiles of
    ``token_tile * vocab_tile`` floats are made once and used again, whatever N and V are; None for either is the
    size of ``tile_shape``. The divergence is clamped at 0. The teacher uses the student's
    head unless it has one of its own, of any width, over the same vocabulary and at the same temperature
    (``ValueError`` otherwise). A non-finite hidden state gives non-finite statistics in its own row only.

    Logits are float32 also where the operands are not. While the operands are bfloat16 and on a CPU, torch's
    process-wide setting for float32 products is "bf16", as their values allow; see ``bfloat16_products``.

    >>> head = Head(weight_VD=torch.eye(2))
    >>> hidden = torch.tensor([[3.0, 0.0]]).log1p()  # probabilities 4/5 and 1/5
    >>> even = torch.zeros(1, 2)  # one half each
    >>> statistics = token_statistics(hidden, torch.tensor([0]), head, teacher_ND=even)
    >>> statistics.student_logprob, statistics.divergence  # log(0.8);  0.8 log(1.6) + 0.2 log(0.4)
    (tensor([-0.2231]), tensor([0.1927]))
    """
    teacher_head = head.for_teacher(teacher_head)
    rows, columns = tile_shape(student_ND, head, teacher_head, token_tile, vocab_tile)
    student_tiles = TiledHead(head)
    teacher_tiles = student_tiles if teacher_head is head else TiledHead(teacher_head)
    vocab, device = head.weight_VD.shape[0], student_ND.device
    buffers = [torch.empty(rows * columns, device=device) for _ in range(2 if teacher_ND is None else 3)]
    sums = empty_sums(len(token_N), device)
    with bfloat16_products(student_ND, teacher_ND, head.weight_VD, teacher_head.weight_VD):
        for first in range(0, len(token_N), rows):
            part = slice(first, first + rows)
            here, token, student = sums[:, part], token_N[part], student_tiles.operand(student_ND[part])
            teacher = None if teacher_ND is None else teacher_tiles.operand(teacher_ND[part])
            for begin in range(0, vocab, columns):
                end, place = min(begin + columns, vocab), token - begin
                logits = student_tiles.logits(buffers[0], student, begin, end)
                logits_t = None if teacher is None else teacher_tiles.logits(buffers[1], teacher, begin, end)
                note_sampled(here, SAMPLED, logits, place)
                if logits_t is not None:
                    note_sampled(here, SAMPLED_T, logits_t, place)
                fold(here, logits, logits_t, buffers[-1][: logits.numel()].view_as(logits))
    return _statistics(sums, teacher_ND is not None)


def _statistics(sums: Float64[Tensor, "8 N"], taught: bool) -> TokenStatistics:
    log_mass, mean_own = sums[MASS].log(), sums[OWN] / sums[MASS]
    logprob, entropy = sums[SAMPLED] - sums[TOP] - log_mass, log_mass - mean_own
    if not taught:
        return TokenStatistics(student_logprob=logprob.float(), student_entropy=entropy.float())
    teacher_logprob = sums[SAMPLED_T] - sums[TOP_T] - sums[MASS_T].log()
    return TokenStatistics(
        student_logprob=logprob.float(),
        student_entropy=entropy.float(),
        teacher_logprob=teacher_logprob.float(),
        divergence=reverse_divergence(sums).clamp(min=0).float(),
    )


def tile_shape(
    hidden_ND: Float[Tensor, "N D"],
    head: Head,
    teacher_head: Head,
    token_tile: int | None = None,
    vocab_tile: int | None = None,
) -> tuple[int, int]:
    """Tokens and columns of a tile: 512 x 1,024 on a CPU, and as many logits where one of the two is short.

    Few tokens make a tile wider and a small vocabulary makes it longer, so that the cost of a tile's many small
    operations stays low.

    >>> head = Head(weight_VD=torch.zeros(5000, 1))
    >>> tile_shape(torch.zeros(2000, 1), head, head), tile_shape(torch.zeros(9, 1), head, head)
    ((512, 1024), (9, 5000))
    """
    num_tokens, (vocab, width) = max(1, len(hidden_ND)), head.weight_VD.shape
    most, logits, weights = _TILE["cuda" if hidden_ND.is_cuda else "cpu"]
    if vocab_tile is None:
        widest = max(width, teacher_head.weight_VD.shape[1])
        vocab_tile = max(1, min(logits // min(num_tokens, token_tile or most), weights // widest))
    columns = min(vocab, vocab_tile)
    rows = token_tile or (max(most, logits // columns) if columns == vocab else most)
    return min(num_tokens, rows), columns


@contextmanager
def bfloat16_products(*operands: Tensor | None) -> Generator[None]:
    """In this block float32 products on a CPU may round to bfloat16, if that is what all the operands are.

    Of operands that are cast to float32 only to be multiplied nothing is rounded then, and sums and results are
    float32. oneDNN's kernels take over: bfloat16 arithmetic where the processor has AMX, float32 elsewhere. The
    setting is documented with torch's MKLDNN backend, since torch 2.9; an older torch makes its ordinary product.
    It holds for the whole process: another thread's products are under it for as long as the block lasts. It is
    restored on the way out, also by an error.

    >>> x = torch.ones(1, 2, dtype=torch.bfloat16)
    >>> with bfloat16_products(x):
    ...     torch.backends.mkldnn.matmul.fp32_precision, x.float() @ x.float().t()
    ('bf16', tensor([[2.]]))
    """
    setting: Any = getattr(getattr(torch.backends, "mkldnn", None), "matmul", None)
    before = getattr(setting, "fp32_precision", None)
    exact = all(x is None or (x.dtype == torch.bfloat16 and x.device.type == "cpu") for x in operands)
    if before is None or not exact:
        yield
        return
    setting.fp32_precision = "bf16"
    try:
        yield
    finally:
        setting.fp32_precision = before


def scattered(values_N: Float[Tensor, " N"], mask: Bool[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """The values of the mask's True tokens, row by row, back in their places; 0 elsewhere.

    >>> scattered(torch.tensor([5.0, 6.0]), torch.tensor([[True, False], [False, True]]))
    tensor([[5., 0.],
            [0., 6.]])
    """
    out = torch.zeros(mask.shape, dtype=values_N.dtype, device=values_N.device)
    return out.masked_scatter(mask, values_N)
