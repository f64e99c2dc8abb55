"""The competitors of the signals benchmark: ours, TRL's and full logits, from the same operands."""

# TRL's kernels are untyped.

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from trl.kernels.chunked_divergence import VOCAB_CHUNK_SIZE, ChunkedDivergenceFunction
from trl.kernels.chunked_logprob import ChunkedLogProbFunction
from trl.trainer.utils import entropy_from_logits, selective_log_softmax

from gear_rl.tensor.logits import Head, token_statistics

Numbers = dict[str, Tensor]
"""``logp``, ``teacher_logp``, ``entropy`` and ``kl`` of every token, as far as a competitor computes them."""


class Operands(NamedTuple):
    """Two hidden states per token, one head, and the sampled tokens."""

    student_ND: Float[Tensor, "N D"]
    teacher_ND: Float[Tensor, "N D"]
    weight_VD: Float[Tensor, "V D"]
    token_N: Int[Tensor, " N"]

    def to(self, kind: torch.dtype | str) -> "Operands":
        """The same, in another floating-point type or on another device."""
        token_N = self.token_N if isinstance(kind, torch.dtype) else self.token_N.to(kind)
        student, teacher, weight = (x.to(kind) for x in self[:3])
        return Operands(student, teacher, weight, token_N)

    def first(self, tokens: int) -> "Operands":
        """The first tokens alone."""
        return Operands(
            self.student_ND[:tokens], self.teacher_ND[:tokens], self.weight_VD, self.token_N[:tokens]
        )


def operands(tokens: int, hidden: int, vocab: int) -> Operands:
    """Float32 operands with logits like a language model's: near-certain and open positions, small divergences.

    Random normal logits would hide the cancellation that large logits and close models bring. The sampled token
    is lifted by 0 to 22 nats, and most teachers hardly differ from their student.

    >>> operands(3, 4, 7).weight_VD.shape
    torch.Size([7, 4])
    """
    seeded = torch.Generator().manual_seed(0)
    weight = torch.randn(vocab, hidden, generator=seeded).div_(math.sqrt(hidden))
    token, other = torch.randint(0, vocab, (2, tokens), generator=seeded)
    lift = torch.rand(tokens, 1, generator=seeded) * 22
    student = torch.randn(tokens, hidden, generator=seeded) * 2 + lift * weight[token]
    step = 0.02 + torch.rand(tokens, 1, generator=seeded) ** 3
    teacher = student + step * (torch.randn(tokens, hidden, generator=seeded) + 6 * weight[other])
    return Operands(student, teacher, weight, token)


def bare(given: Operands, token_tile: int = 512, vocab_tile: int = 4096) -> Numbers:
    """The limit: the two head products into two buffers that are used again, and nothing else."""
    tokens, vocab = len(given.token_N), len(given.weight_VD)
    size = min(token_tile, tokens) * min(vocab_tile, vocab)
    buffers = [given.student_ND.new_empty(size) for _ in range(2)]
    for t in range(0, tokens, token_tile):
        rows = [x[t : t + token_tile] for x in (given.student_ND, given.teacher_ND)]
        for v in range(0, vocab, vocab_tile):
            weight = given.weight_VD[v : v + vocab_tile].t()
            for x, buffer in zip(rows, buffers, strict=True):
                torch.mm(x, weight, out=buffer[: len(x) * weight.shape[1]].view(len(x), weight.shape[1]))
    return {}


def full_logits(given: Operands, dtype: torch.dtype = torch.float32) -> Numbers:
    """The definition, with both (N, V) log-softmaxes in ``dtype``.

    >>> sorted(full_logits(operands(2, 3, 5)))
    ['entropy', 'kl', 'logp', 'teacher_logp']
    """
    log_p = (given.student_ND @ given.weight_VD.t()).to(dtype).log_softmax(-1)
    log_q = (given.teacher_ND @ given.weight_VD.t()).to(dtype).log_softmax(-1)
    p, token = log_p.exp(), given.token_N[:, None]
    return {
        "logp": log_p.gather(-1, token)[:, 0],
        "teacher_logp": log_q.gather(-1, token)[:, 0],
        "entropy": -(p * log_p).sum(-1),
        "kl": (p * (log_p - log_q)).sum(-1),
    }


def exact(given: Operands, product: torch.dtype = torch.float64) -> Numbers:
    """The definition in float64; with ``product`` float32 only the head products are of that type."""
    return full_logits(given.to(product), torch.float64)


def errors(given: Numbers, true: Numbers) -> dict[str, float]:
    """Largest absolute error of each number that both hold.

    >>> errors({"kl": torch.tensor([1.5])}, {"kl": torch.tensor([1.0])})
    {'kl': 0.5}
    """
    return {
        name: (given[name].to(true[name]) - true[name]).abs().max().item() for name in true if name in given
    }


def ours(given: Operands) -> Numbers:
    """The package's fold over the vocabulary."""
    head = Head(weight_VD=given.weight_VD)
    found = token_statistics(given.student_ND, given.token_N, head, given.teacher_ND)
    assert found.teacher_logprob is not None and found.divergence is not None
    return {
        "logp": found.student_logprob,
        "teacher_logp": found.teacher_logprob,
        "entropy": found.student_entropy,
        "kl": found.divergence,
    }


def trl_kernels(given: Operands) -> Numbers:
    """TRL's chunked divergence and chunked log-prob: three head products for the same three numbers."""
    head, reverse = (given.weight_VD, None), 1.0  # TRL's beta of KL(student || teacher)
    kl, entropy = ChunkedDivergenceFunction.apply(given.student_ND, *head, given.teacher_ND, *head, reverse)
    temperature, softcap, scale = 1.0, None, 1.0
    logp, *_ = ChunkedLogProbFunction.apply(
        given.student_ND, *head, given.token_N, temperature, VOCAB_CHUNK_SIZE, softcap, scale, ()
    )
    return {"logp": logp, "entropy": entropy, "kl": kl}


def trl_functions(given: Operands) -> Numbers:
    """What TRL's trainers use: the student's log-prob and entropy from full logits."""
    logits = (given.student_ND @ given.weight_VD.t())[None]  # TRL loops over a batch dimension
    return {
        "logp": selective_log_softmax(logits, given.token_N[None])[0].float(),
        "entropy": entropy_from_logits(logits)[0].float(),
    }


class Competitor(NamedTuple):
    """One way to the signals, or to a part of them."""

    label: str
    heads: int
    """Head products that it takes: 2 is the least for student and teacher."""
    run: Callable[[Operands], Numbers]


COMPETITORS = {
    "bare": Competitor("two bare head products, best tile", 2, bare),
    "eager": Competitor("gear-rl, eager", 2, ours),
    "trl_both": Competitor("TRL chunked divergence + chunked log-prob", 3, trl_kernels),
    "trl_functions": Competitor("TRL selective_log_softmax + entropy_from_logits", 1, trl_functions),
    "naive": Competitor("full logits, log_softmax", 2, full_logits),
}
