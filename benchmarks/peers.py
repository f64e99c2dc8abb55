"""The competitors of the signals bench: what each gives, and how to call it.

Every one is handed the same hidden states, the same head and the same tokens. ``gives`` says what comes back, so
that no row flatters a peer that computes less. A peer that is not installed, or cannot run here, says why.
"""

# TRL's kernels and Liger are untyped.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportMissingImports=false

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from gear_rl.tensor.logits import Head, token_statistics

TILES = ((256, 512), (256, 2048), (512, 1024), (512, 4096), (1024, 2048), (1024, 8192))
"""Tokens x vocabulary of the bare products' tiles; the fastest is the limit that all are measured against."""
Numbers = dict[str, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operands:
    """Two hidden states per token, one head, and the sampled tokens."""

    student_ND: Float[Tensor, "N D"]
    teacher_ND: Float[Tensor, "N D"]
    weight_VD: Float[Tensor, "V D"]
    token_N: Int[Tensor, " N"]

    def to(self, dtype: torch.dtype) -> "Operands":
        """The same, rounded to ``dtype``."""
        return Operands(
            student_ND=self.student_ND.to(dtype),
            teacher_ND=self.teacher_ND.to(dtype),
            weight_VD=self.weight_VD.to(dtype),
            token_N=self.token_N,
        )

    def first(self, tokens: int, vocab: int) -> "Operands":
        """The first tokens and the first part of the vocabulary, without a copy."""
        return Operands(
            student_ND=self.student_ND[:tokens],
            teacher_ND=self.teacher_ND[:tokens],
            weight_VD=self.weight_VD[:vocab],
            token_N=self.token_N[:tokens].remainder(min(vocab, len(self.weight_VD))),
        )


def operands(tokens: int, hidden: int, vocab: int, device: str = "cpu", seed: int = 0) -> Operands:
    """Float32 operands with logits like a language model's: near-certain and open positions, small divergences.

    Random normal logits would hide the cancellation that large logits and close models bring. The sampled token
    is lifted by 0 to 22 nats, and most teachers hardly differ from their student. Raises ``ValueError`` for an
    empty size.

    >>> operands(3, 4, 7).weight_VD.shape
    torch.Size([7, 4])
    """
    for field, value in (("tokens", tokens), ("hidden", hidden), ("vocab", vocab)):
        if value < 1:
            raise ValueError(f"{field}: {value}; give 1 or more")
    seeded = torch.Generator().manual_seed(seed)
    weight = torch.randn(vocab, hidden, generator=seeded).div_(math.sqrt(hidden))
    token, other = torch.randint(0, vocab, (2, tokens), generator=seeded)
    lift = torch.rand(tokens, 1, generator=seeded) * 22
    student = torch.randn(tokens, hidden, generator=seeded) * 2 + lift * weight[token]
    step = 0.02 + torch.rand(tokens, 1, generator=seeded) ** 3
    teacher = student + step * (torch.randn(tokens, hidden, generator=seeded) + 6 * weight[other])
    made = Operands(student_ND=student, teacher_ND=teacher, weight_VD=weight, token_N=token)
    if device == "cpu":
        return made
    return Operands(**{field: getattr(made, field).to(device) for field in Operands.__slots__})


@dataclass(frozen=True, slots=True, kw_only=True)
class Competitor:
    """One way to the signals, or to a part of them."""

    label: str
    gives: tuple[str, ...]
    """Of ``logp`` (the student's), ``teacher_logp``, ``entropy``, ``kl``, ``jsd`` (one sum and its gradient)."""
    heads: int
    """Head products that it takes: 2 is the least for student and teacher."""
    run: Callable[[Operands], Numbers]
    missing: Callable[[str], str | None] = lambda device: None
    """Why it cannot run on that device; None where it can."""
    materialises: bool = False
    """Holds (N, V) logits."""


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


def exact(
    given: Operands, product: torch.dtype = torch.float64, block: int = 64, vocab_tile: int = 16384
) -> Numbers:
    """The same numbers in float64, from the operands as they are: what errors are measured against.

    With ``product`` float32 only the head products are of that type: what they alone cost in exactness.
    """
    parts: dict[str, list[Tensor]] = {"logp": [], "teacher_logp": [], "entropy": [], "kl": []}
    weights = given.weight_VD.split(vocab_tile)
    for t in range(0, len(given.token_N), block):
        log_p, log_q = (
            torch.cat([x[t : t + block].to(product) @ w.to(product).t() for w in weights], -1)
            .double().log_softmax(-1)
            for x in (given.student_ND, given.teacher_ND)
        )  # fmt: skip
        token, p = given.token_N[t : t + block, None], log_p.exp()
        parts["logp"].append(log_p.gather(-1, token)[:, 0])
        parts["teacher_logp"].append(log_q.gather(-1, token)[:, 0])
        parts["entropy"].append(-(p * log_p).sum(-1))
        parts["kl"].append((p * (log_p - log_q)).sum(-1))
    return {name: torch.cat(blocks) for name, blocks in parts.items()}


def errors(given: Numbers, true: Numbers) -> dict[str, float]:
    """Largest absolute error of each number that both hold, over the first tokens, those of ``true``.

    >>> errors({"kl": torch.tensor([1.5, 9.0])}, {"kl": torch.tensor([1.0])})
    {'kl': 0.5}
    """
    return {
        name: (given[name][: len(value)].to(value) - value).abs().max().item()
        for name, value in true.items()
        if name in given
    }


def _ours(given: Operands) -> Numbers:
    statistics = token_statistics(
        given.student_ND, given.token_N, Head(weight_VD=given.weight_VD), given.teacher_ND
    )
    assert statistics.teacher_logprob is not None and statistics.divergence is not None
    return {
        "logp": statistics.student_logprob,
        "teacher_logp": statistics.teacher_logprob,
        "entropy": statistics.student_entropy,
        "kl": statistics.divergence,
    }


def _naive(given: Operands) -> Numbers:
    log_p = (given.student_ND @ given.weight_VD.t()).float().log_softmax(-1)
    log_q = (given.teacher_ND @ given.weight_VD.t()).float().log_softmax(-1)
    p, token = log_p.exp(), given.token_N[:, None]
    return {
        "logp": log_p.gather(-1, token)[:, 0],
        "teacher_logp": log_q.gather(-1, token)[:, 0],
        "entropy": -(p * log_p).sum(-1),
        "kl": (p * (log_p - log_q)).sum(-1),
    }


def _trl_divergence(given: Operands) -> Numbers:
    from trl.kernels.chunked_divergence import ChunkedDivergenceFunction

    reverse = 1.0  # TRL's beta: KL(student || teacher)
    head, no_bias = given.weight_VD, None
    kl, entropy = ChunkedDivergenceFunction.apply(
        given.student_ND, head, no_bias, given.teacher_ND, head, no_bias, reverse
    )
    return {"kl": kl, "entropy": entropy}


def _trl_logprob(given: Operands) -> Numbers:
    from trl.kernels.chunked_divergence import VOCAB_CHUNK_SIZE
    from trl.kernels.chunked_logprob import ChunkedLogProbFunction

    temperature, softcap, scale = 1.0, None, 1.0
    logp, *_ = ChunkedLogProbFunction.apply(
        given.student_ND, given.weight_VD, None, given.token_N, temperature, VOCAB_CHUNK_SIZE, softcap, scale, ()
    )  # fmt: skip
    return {"logp": logp}


def _trl_functions(given: Operands) -> Numbers:
    from trl.trainer.utils import entropy_from_logits, selective_log_softmax

    logits = (given.student_ND @ given.weight_VD.t())[None]  # TRL has a batch dimension, and loops over it
    return {
        "logp": selective_log_softmax(logits, given.token_N[None])[0].float(),
        "entropy": entropy_from_logits(logits)[0].float(),
    }


def _rlsd_rule(given: Operands, clip_width: float = 0.2) -> Numbers:
    """RLSD (arXiv:2604.03128) as ms-swift runs it: the log-ratio of the sampled token alone, and its weight."""
    from trl.trainer.utils import selective_log_softmax

    logp, teacher_logp = (
        selective_log_softmax((x @ given.weight_VD.t())[None], given.token_N[None])[0].float()
        for x in (given.student_ND, given.teacher_ND)
    )
    (teacher_logp - logp).exp().clamp(1 - clip_width, 1 + clip_width)  # the rule for a positive advantage
    return {"logp": logp, "teacher_logp": teacher_logp}


def _liger_jsd(given: Operands) -> Numbers:
    from liger_kernel.transformers import LigerFusedLinearJSD

    with torch.enable_grad():  # it computes the gradients in its forward, and gives one number
        student = given.student_ND.detach().requires_grad_()
        loss = LigerFusedLinearJSD(jsd_beta=0.5)(student, given.weight_VD, given.teacher_ND, given.weight_VD)
    return {"jsd": loss.detach()}


def _needs(module: str, package: str, cuda: bool = False) -> Callable[[str], str | None]:
    def why(device: str) -> str | None:
        import importlib.util

        if cuda and device != "cuda":
            return f"{package} runs on CUDA only"
        try:
            spec = importlib.util.find_spec(module)
        except ModuleNotFoundError:
            spec = None
        return None if spec else f"{module} is not installed"

    return why


_KERNELS = _needs("trl.kernels.chunked_divergence", "TRL")
_TRL = _needs("trl.trainer.utils", "TRL")
ALL = ("logp", "entropy", "kl")
COMPETITORS: dict[str, Competitor] = {
    "bare": Competitor(label="two bare head products, best tile", gives=(), heads=2, run=bare),
    "eager": Competitor(label="gear-rl, eager", gives=(*ALL, "teacher_logp"), heads=2, run=_ours),
    "trl_both": Competitor(
        label="TRL chunked divergence + chunked log-prob",
        gives=ALL,
        heads=3,
        run=lambda given: _trl_divergence(given) | _trl_logprob(given),
        missing=_KERNELS,
    ),
    "trl_divergence": Competitor(
        label="TRL chunked divergence",
        gives=("entropy", "kl"),
        heads=2,
        run=_trl_divergence,
        missing=_KERNELS,
    ),
    "trl_logprob": Competitor(
        label="TRL chunked log-prob", gives=("logp",), heads=1, run=_trl_logprob, missing=_KERNELS
    ),
    "trl_functions": Competitor(
        label="TRL selective_log_softmax + entropy_from_logits",
        gives=("logp", "entropy"),
        heads=1,
        run=_trl_functions,
        missing=_TRL,
        materialises=True,
    ),
    "rlsd": Competitor(
        label="RLSD's rule on sampled tokens (ms-swift)",
        gives=("logp", "teacher_logp"),
        heads=2,
        run=_rlsd_rule,
        missing=_TRL,
        materialises=True,
    ),
    "naive": Competitor(
        label="full logits, log_softmax",
        gives=(*ALL, "teacher_logp"),
        heads=2,
        run=_naive,
        materialises=True,
    ),
    "liger_jsd": Competitor(
        label="Liger fused linear JSD",
        gives=("jsd",),
        heads=2,
        run=_liger_jsd,
        missing=_needs("liger_kernel", "Liger", cuda=True),
    ),
}
"""Ours first, then the peers; ``bare`` is the limit."""
OURS = ("bare", "eager")


def why_missing(name: str, given: Operands) -> str | None:
    """Why that competitor does not run on these operands; None if it does.

    One that holds all logits is left out where two float32 ones, their log-softmax and a product would not fit
    into half of the memory that is free.

    >>> why_missing("naive", operands(2, 3, 5)) is None
    True
    """
    competitor, device = COMPETITORS[name], given.student_ND.device.type
    why = competitor.missing(device)
    if why is None and competitor.materialises:
        needed = 7 * 4 * len(given.token_N) * len(given.weight_VD)
        if 2 * needed > (free := _free_bytes(device)):
            why = f"would hold some {needed / 2**30:.0f} GiB of logits, and {free / 2**30:.0f} GiB are free"
    return why


def chosen(peers: str) -> list[str]:
    """Names of the competitors of ``--peers all`` or ``none``; ``ValueError`` for another word.

    >>> chosen("none")
    ['bare', 'eager']
    """
    if peers not in ("all", "none"):
        raise ValueError(f"peers: {peers!r} is not one of all, none")
    return list(COMPETITORS) if peers == "all" else list(OURS)


def _free_bytes(device: str) -> float:
    if device == "cuda":
        return torch.cuda.mem_get_info()[0]
    try:
        with open("/proc/meminfo") as file:
            return _kb_of(file, "MemAvailable:") * 1024
    except OSError:
        return math.inf


def _kb_of(lines: Iterable[str], key: str) -> float:
    return next((float(line.split()[1]) for line in lines if line.startswith(key)), math.inf)
