"""Log-probabilities, entropies and divergences from hidden states, in tiles: no (B, T, V) tensor ever exists.

This is also the one place that turns *predicting positions* into *emitted tokens*: the hidden state at
position ``s`` predicts the token at ``s + 1``, so a completion of ``T`` tokens is predicted by the ``T``
positions before its last one.
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """A language-model head: how hidden states become the logits that the policy samples from.

    ``logit = softcap(scale * (hidden @ weight.T + bias)) / temperature``, in float32. Raises ``ValueError``
    for a temperature that is not positive.

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

    @property
    def padded(self) -> bool:
        """Whether a logit may be -inf: the bias of a padded vocabulary's tokens is."""
        return self.bias_V is not None

    def logits(
        self, hidden_ND: Float[Tensor, "N D"], buffer: Float[Tensor, " C"] | None = None
    ) -> Float[Tensor, "N V"]:
        """Float32 logits; with a ``buffer`` and no gradient the product is written into its first numbers.

        The product itself yields float32: bfloat16 logits would drown the small divergences that an onset
        threshold looks at (the error reaches 5e-3 nats where the median KL is 2e-3).
        """
        weight, shape = self.weight_VD, (len(hidden_ND), len(self.weight_VD))
        out = None if buffer is None else buffer[: shape[0] * shape[1]].view(shape)
        with torch.autocast(hidden_ND.device.type, enabled=False):
            if hidden_ND.is_cuda and hidden_ND.dtype == weight.dtype != torch.float32:
                logits = torch.mm(hidden_ND, weight.t(), out_dtype=torch.float32, out=out)
            else:
                logits = torch.mm(hidden_ND.float(), weight.float().t(), out=out)
        if self.bias_V is not None:
            logits.add_(self.bias_V)
        if self.scale != 1.0:
            logits.mul_(self.scale)
        if self.softcap is not None:
            logits = logits.div_(self.softcap).tanh_() * self.softcap
        return logits if self.temperature == 1.0 else logits.div_(self.temperature)

    def slice(self, begin: int, end: int) -> "Head":
        """The same head over a part of the vocabulary; on a CPU in float32, cast once for student and teacher."""
        weight, bias = self.weight_VD[begin:end], self.bias_V
        return replace(
            self,
            weight_VD=weight if weight.is_cuda else weight.float(),
            bias_V=None if bias is None else bias[begin:end],
        )

    def to(self, device: torch.device) -> "Head":
        """The same head on a device."""
        bias = None if self.bias_V is None else self.bias_V.to(device)
        return replace(self, weight_VD=self.weight_VD.to(device), bias_V=bias)

    def clone(self) -> "Head":
        """A copy with weights of its own."""
        bias = None if self.bias_V is None else self.bias_V.clone()
        return replace(self, weight_VD=self.weight_VD.clone(), bias_V=bias)

    def for_teacher(self, teacher_head: "Head | None") -> "Head":
        """The teacher's head: its own, or else this one.

        Raises ``ValueError`` unless it is over the same vocabulary, at the same temperature.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenStatistics:
    """What one pass over the vocabulary gives of each token, in nats; None without a teacher."""

    student_logprob: Float[Tensor, " N"]
    student_entropy: Float[Tensor, " N"]
    teacher_logprob: Float[Tensor, " N"] | None = None
    divergence: Float[Tensor, " N"] | None = None


@torch.no_grad()
def token_statistics(
    student_ND: Float[Tensor, "N D"],
    token_N: Int[Tensor, " N"],
    head: Head,
    teacher_ND: Float[Tensor, "N E"] | None = None,
    teacher_head: Head | None = None,
) -> TokenStatistics:
    """Log-prob and entropy of every token, and with a teacher its log-prob and KL(student || teacher).

    Exact over the whole vocabulary, float32, the divergence at least 0. Memory is a few tiles of logits, whatever
    N and V are. ``teacher_head`` may have another width, but not another vocabulary or temperature
    (``ValueError``); None for the student's. A non-finite hidden state gives non-finite statistics in its own
    row only.

    >>> head = Head(weight_VD=torch.eye(2))
    >>> hidden = torch.tensor([[3.0, 0.0]]).log1p()  # probabilities 4/5 and 1/5
    >>> even = torch.zeros(1, 2)  # one half each
    >>> statistics = token_statistics(hidden, torch.tensor([0]), head, teacher_ND=even)
    >>> statistics.student_logprob, statistics.divergence  # log(0.8);  0.8 log(1.6) + 0.2 log(0.4)
    (tensor([-0.2231]), tensor([0.1927]))
    """
    teacher_head = head.for_teacher(teacher_head)
    rows, columns = tile_shape(len(token_N), head)
    sums = empty_sums(len(token_N), token_N.device)
    tiles = [student_ND.new_empty(rows * columns, dtype=torch.float32) for _ in range(2)]
    for first in range(0, len(token_N), rows):
        part = slice(first, first + rows)
        for begin in range(0, len(head.weight_VD), columns):
            here, place = head.slice(begin, begin + columns), token_N[part] - begin
            logits, taught = here.logits(student_ND[part], tiles[0]), None
            note_sampled(sums[:, part], SAMPLED, logits, place)
            if teacher_ND is not None:
                there = here if teacher_head is head else teacher_head.slice(begin, begin + columns)
                taught = there.logits(teacher_ND[part], tiles[1])
                note_sampled(sums[:, part], SAMPLED_T, taught, place)
            fold(sums[:, part], logits, taught, padded=head.padded or teacher_head.padded)
    log_mass, mean_own = sums[MASS].log(), sums[OWN] / sums[MASS]
    logprob, entropy = (sums[SAMPLED] - sums[TOP] - log_mass).float(), (log_mass - mean_own).float()
    if teacher_ND is None:
        return TokenStatistics(student_logprob=logprob, student_entropy=entropy)
    return TokenStatistics(
        student_logprob=logprob,
        student_entropy=entropy,
        teacher_logprob=(sums[SAMPLED_T] - sums[TOP_T] - sums[MASS_T].log()).float(),
        divergence=reverse_divergence(sums).clamp(min=0).float(),
    )


def tile_shape(num_tokens: int, head: Head) -> tuple[int, int]:
    """Tokens and columns of a tile: 512 x 1,024 on a CPU, and as many logits where one of the two is short.

    The weights of a tile are limited, too: on a CPU the teacher finds the student's 8 MiB of them in the cache.
    On CUDA a tile is 256 MiB: on an H100 larger ones were 5% faster, one of 64 MiB took half as long again.

    >>> head = Head(weight_VD=torch.zeros(5000, 1))
    >>> tile_shape(2000, head), tile_shape(9, head)
    ((512, 1024), (9, 5000))
    """
    most, logits, weights = (4096, 2**26, 2**26) if head.weight_VD.is_cuda else (512, 2**19, 2**21)
    vocab, width = head.weight_VD.shape
    num_tokens = max(1, num_tokens)
    columns = min(vocab, max(1, min(logits // min(num_tokens, most), weights // width)))
    rows = max(most, logits // columns) if columns == vocab else most
    return min(num_tokens, rows), columns


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


def scatter_values(values_N: Float[Tensor, " N"], mask: Bool[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """The values of the mask's True tokens, row by row, back in their places; 0 elsewhere.

    >>> scatter_values(torch.tensor([5.0, 6.0]), torch.tensor([[True, False], [False, True]]))
    tensor([[5., 0.],
            [0., 6.]])
    """
    out = torch.zeros(mask.shape, dtype=values_N.dtype, device=values_N.device)
    return out.masked_scatter(mask, values_N)
