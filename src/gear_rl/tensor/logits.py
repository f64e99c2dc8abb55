"""Log-probabilities, entropies and divergences from hidden states, in tiles: no (B, T, V) tensor ever exists.

This is also the one place that turns *predicting positions* into *emitted tokens*: the hidden state at
position ``s`` predicts the token at ``s + 1``, so a completion of ``T`` tokens is predicted by the ``T``
positions before its last one. Knows no model, no trainer and no method: it is handed hidden states and a head.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


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


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenStatistics:
    """What one pass over the vocabulary tells of each token, in nats; None where it was not asked for."""

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
    token_tile: int = 256,
    vocab_tile: int = 2048,
) -> TokenStatistics:
    """Log-prob and entropy of every token, and with a teacher its log-prob and KL(student || teacher).

    Exact over the whole vocabulary, float32, in one pass: the sums are updated tile by tile, and are centred
    on the running maximum, so that a small divergence is not the difference of two large numbers. Memory is
    ``3 * token_tile * vocab_tile`` floats whatever N and V are. The divergence is clamped at 0. The teacher
    uses the student's head unless it has one of its own, of any width, over the same vocabulary and at the same
    temperature (``ValueError`` otherwise). A non-finite hidden state gives non-finite statistics in its own row
    only.

    >>> head = Head(weight_VD=torch.eye(2))
    >>> hidden = torch.tensor([[3.0, 0.0]]).log1p()  # probabilities 4/5 and 1/5
    >>> even = torch.zeros(1, 2)  # one half each
    >>> found = token_statistics(hidden, torch.tensor([0]), head, teacher_ND=even)
    >>> found.student_logprob, found.divergence  # log(0.8);  0.8 log(1.6) + 0.2 log(0.4)
    (tensor([-0.2231]), tensor([0.1927]))
    """
    teacher_head = head if teacher_head is None else teacher_head
    for field, student, teacher in (
        ("vocabulary", head.weight_VD.shape[0], teacher_head.weight_VD.shape[0]),
        ("temperature", head.temperature, teacher_head.temperature),
    ):
        if student != teacher:
            raise ValueError(f"teacher_head: {field} {teacher}, but the student has {student}; use the same")
    tiles = [
        _tile_statistics(
            student_ND[i : i + token_tile],
            token_N[i : i + token_tile],
            head,
            None if teacher_ND is None else teacher_ND[i : i + token_tile],
            teacher_head,
            vocab_tile,
        )
        for i in range(0, max(len(token_N), 1), token_tile)
    ]
    logprob, entropy, teacher_logprob, divergence = (torch.cat(parts) for parts in zip(*tiles, strict=True))
    if teacher_ND is None:
        return TokenStatistics(student_logprob=logprob, student_entropy=entropy)
    return TokenStatistics(
        student_logprob=logprob,
        student_entropy=entropy,
        teacher_logprob=teacher_logprob,
        divergence=divergence,
    )


def _tile_statistics(
    student_ND: Tensor,
    token_N: Tensor,
    head: Head,
    teacher_ND: Tensor | None,
    teacher_head: Head,
    vocab_tile: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Log-prob, entropy, teacher log-prob and divergence of one token tile (the last two 0 with no teacher)."""
    num_tokens, vocab = len(token_N), head.weight_VD.shape[0]
    zero = torch.zeros(num_tokens, device=student_ND.device)
    # Of each distribution: the largest logit so far, the sum of exp(logit - largest), the sampled token's logit.
    top, mass, sampled = torch.full_like(zero, -torch.inf), zero, zero
    top_t, mass_t, sampled_t = torch.full_like(zero, -torch.inf), zero, zero
    # Sums over the student's exp(logit - top), of its own centred logits and of the teacher's.
    own, other = zero, zero
    for begin in range(0, vocab, vocab_tile):
        end = min(begin + vocab_tile, vocab)
        place = token_N - begin
        here = (place >= 0) & (place < end - begin)
        place = place.clamp(0, end - begin - 1)[:, None]

        logits = head.logits(student_ND, begin, end)
        sampled = torch.where(here, logits.gather(-1, place)[:, 0], sampled)
        new_top = torch.maximum(top, logits.amax(-1))
        centred = logits.sub_(new_top[:, None])
        weight = centred.exp()
        # In the first tile there is nothing to rescale, and -inf - x would make 0 * inf.
        shift = torch.where(mass > 0, top - new_top, 0.0)
        shrink = shift.exp()
        own = shrink * (own + mass * shift) + _dot(weight, centred)
        if teacher_ND is not None:
            logits_t = teacher_head.logits(teacher_ND, begin, end)
            sampled_t = torch.where(here, logits_t.gather(-1, place)[:, 0], sampled_t)
            new_top_t = torch.maximum(top_t, logits_t.amax(-1))
            centred_t = logits_t.sub_(new_top_t[:, None])
            shift_t = torch.where(mass_t > 0, top_t - new_top_t, 0.0)
            other = shrink * (other + mass * shift_t) + _dot(weight, centred_t)
            mass_t = shift_t.exp() * mass_t + centred_t.exp_().sum(-1)
            top_t = new_top_t
        mass = shrink * mass + weight.sum(-1)
        top = new_top
    log_mass, mean_own = mass.log(), own / mass
    logprob, entropy = sampled - top - log_mass, log_mass - mean_own
    if teacher_ND is None:
        return logprob, entropy, zero, zero
    log_mass_t = mass_t.log()
    divergence = (mean_own - other / mass - log_mass + log_mass_t).clamp(min=0)
    return logprob, entropy, sampled_t - top_t - log_mass_t, divergence


def scattered(values_N: Float[Tensor, " N"], mask: Bool[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """The values of the mask's True tokens, row by row, back in their places; 0 elsewhere.

    >>> scattered(torch.tensor([5.0, 6.0]), torch.tensor([[True, False], [False, True]]))
    tensor([[5., 0.],
            [0., 6.]])
    """
    out = torch.zeros(mask.shape, dtype=values_N.dtype, device=values_N.device)
    return out.masked_scatter(mask, values_N)


def _dot(a: Tensor, b: Tensor) -> Tensor:
    """Row by row inner product, without the temporary of ``(a * b).sum(-1)``."""
    return torch.einsum("nv,nv->n", a, b)
