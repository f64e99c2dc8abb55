"""The distillation term of a loss, for methods whose credit says how much of it where. Knows no trainer.

``sum_t weight_t ratio_t term_t + anchor_weight f(r_t)`` over the tokens of some completions. An engine hands in
the student's hidden states with their graph, and divides the sums as it divides its own loss.
"""

from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from gear_rl.signals.batch import Completions, Prompts
from gear_rl.signals.forwards import head_is_trained, head_of, unwrapped
from gear_rl.signals.score import Scorer
from gear_rl.signals.teacher import Teacher
from gear_rl.tensor.distill import distillation_terms, token_logprobs
from gear_rl.tensor.logits import Head
from gear_rl.traits import Anchor, Distillation

CLAMP_NATS = 20.0
"""Largest log-ratio that is exponentiated, as in SDPO's and SDPG's code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DistilledBatch:
    """Some completions as the term sees them.

    >>> ids = torch.tensor([[7, 8, 0]])
    >>> batch = DistilledBatch(
    ...     distillation=Distillation(), ids=ids, attention=ids.sign(), mask=ids > 0, old_logprob=None,
    ...     weight=torch.tensor([[0.0, 0.5, 0.0]]), teacher=Prompts(ids_BP=ids, attention_BP=ids.sign()),
    ...     reference=None,
    ... )
    >>> batch.distilled
    tensor([[False,  True, False]])
    """

    distillation: Distillation
    ids: Int[Tensor, "B T"]
    attention: Int[Tensor, "B T"]
    mask: Bool[Tensor, "B T"]
    weight: Float[Tensor, "B T"]
    """``Credit.distill_weight``."""
    teacher: Prompts
    """The teacher's prompts; a row whose weights are all 0 is never run, so any prompt will do there."""
    old_logprob: Float[Tensor, "B T"] | None
    """Of the policy that sampled; None where it is the policy itself."""
    reference: Float[Tensor, "B T"] | None
    """``reference_logprob`` where the policy is anchored: NaN where it was not computed; None for no anchor."""

    @property
    def distilled(self) -> Bool[Tensor, "B T"]:
        """Trained tokens with a weight other than 0 (NaN is one, too: it is left out later, and counted)."""
        return self.mask & (self.weight != 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class DistillationSums:
    """What the tokens of a batch add to the loss, before it is divided, and what is logged of them."""

    distilled: Float[Tensor, ""]
    """With its graph, as ``anchored``."""
    anchored: Float[Tensor, ""]
    counts: Float[Tensor, "3"]
    """The sum of the terms, their number, and the number of terms and anchors left out as not finite."""


@torch.no_grad()
def teacher_hidden(
    model: nn.Module, batch: DistilledBatch, teacher: Teacher, temperature: float
) -> tuple[Float[Tensor, "N D"] | None, Head | None]:
    """The teacher's hidden states at the distilled tokens, and its head where that is not the student's.

    None where nothing is distilled. To be called before the student's forward: lending weights writes into
    parameters that its graph has saved. ``model`` comes without DDP's wrapper, which would wait for processes
    that have nothing to distil here.
    """
    places = batch.distilled
    if not places.any():
        return None, None
    scorer = Scorer(
        model=model,
        completions=Completions(ids=batch.ids, attention=batch.attention, mask=places),
        row_B=places.any(-1),
        temperature=temperature,
        teacher_weights=teacher.weights if teacher.lends else None,
        batch_size=len(places),
    )
    states = scorer.teacher_states(batch.teacher)
    return states.hidden(torch.arange(len(places), device=places.device), places), states.head


def distillation_sums(
    batch: DistilledBatch,
    hidden: Float[Tensor, "B T D"],
    engines_hidden: Float[Tensor, "B T D"],
    model: nn.Module,
    teacher_ND: Float[Tensor, "N D"] | None,
    teacher_head: Head | None,
    temperature: float,
) -> DistillationSums:
    """The sums over the tokens of a batch; a term or anchor that is not finite is left out and counted.

    ``hidden`` are the student's states that predict each token; ``engines_hidden`` are those of the engine's own
    forward, which differ from them only where its forward counts positions from the padding on.
    """
    head, places = _student_head(model, temperature), batch.distilled
    zero = hidden.new_zeros((), dtype=torch.float32)
    sums = DistillationSums(distilled=zero, anchored=zero, counts=hidden.new_zeros(3, dtype=torch.float32))
    logprob = zero.new_zeros(0)
    if teacher_ND is not None:
        given = batch.distillation
        terms, logprob = distillation_terms(
            hidden[places],
            teacher_ND,
            batch.ids[places],
            head,
            head_of(model, temperature) if teacher_head is None else teacher_head,
            beta=given.beta,
            top_k=given.top_k,
            top_k_of=given.top_k_of,
            tail=given.tail,
            temperature=given.temperature,
            max_nats=given.max_nats,
        )
        same = engines_hidden is hidden
        factor = _factor(batch, logprob, head, None if same else engines_hidden)
        finite = terms.detach().isfinite() & factor.isfinite()
        # Both are replaced: 0 times what is not finite is NaN, in the backward pass as well.
        distilled = (torch.where(finite, factor, 0.0) * torch.where(finite, terms, 0.0)).sum()
        known = torch.where(finite, terms.detach(), 0.0)
        counts = torch.stack([known.sum(), finite.sum(), (~finite).sum()]).float()
        sums = replace(sums, distilled=distilled, counts=counts)
    return sums if batch.reference is None else _anchored(sums, batch, hidden, head, logprob)


def _factor(
    batch: DistilledBatch,
    logprob: Float[Tensor, " N"],
    head: Head,
    engines_hidden: Float[Tensor, "B T D"] | None,
) -> Float[Tensor, " N"]:
    """What each distilled token's term is multiplied by: its weight, and its importance ratio if there is one."""
    places, clip = batch.distilled, batch.distillation.ratio_clip
    factor = batch.weight[places].float()
    if clip is None:
        return factor
    now = logprob.detach()
    if engines_hidden is not None and batch.old_logprob is not None:
        # The old log-prob stands at the engine's positions, and so must the one that it is compared with.
        with torch.no_grad():
            now = token_logprobs(engines_hidden[places], batch.ids[places], head)
    old = now if batch.old_logprob is None else batch.old_logprob[places]
    return factor * importance_ratio(now, old.detach(), clip)


def _anchored(
    sums: DistillationSums,
    batch: DistilledBatch,
    hidden: Float[Tensor, "B T D"],
    head: Head,
    logprob: Float[Tensor, " N"],
) -> DistillationSums:
    """The sums with the penalty that holds the policy to its first weights; ``logprob`` of the distilled
    tokens."""
    reference, places = cast(Tensor, batch.reference), batch.distilled
    rest = batch.mask & ~places
    others = token_logprobs(hidden[rest], batch.ids[rest], head)
    now = torch.cat([logprob, others])
    then = torch.cat([reference[places], reference[rest]])
    known = ~then.isnan()
    finite = known & then.isfinite() & now.detach().isfinite()
    log_ratio = torch.where(finite, now - then, 0.0)
    penalty = torch.where(finite, anchor_penalty(log_ratio, batch.distillation.anchor), 0.0)
    zero = penalty.new_zeros((), dtype=torch.float32)
    left_out = (known & ~finite).sum().float()
    return replace(
        sums,
        anchored=batch.distillation.anchor_weight * penalty.sum(),
        counts=sums.counts + torch.stack([zero, zero, left_out]),
    )


def importance_ratio(
    logprob: Float[Tensor, " N"], old_logprob: Float[Tensor, " N"], clip: float
) -> Float[Tensor, " N"]:
    """``min(exp(log pi - log pi_old), clip)``, the log-ratio clamped to 20 nats before (SDPO, arXiv:2601.20802).

    >>> importance_ratio(torch.tensor([0.5, 3.0]).log(), torch.tensor([1.0, 1.0]).log(), clip=2.0)
    tensor([0.5000, 2.0000])
    """
    return (logprob - old_logprob).clamp(-CLAMP_NATS, CLAMP_NATS).exp().clamp(max=clip)


def anchor_penalty(log_ratio: Float[Tensor, " N"], anchor: Anchor) -> Float[Tensor, " N"]:
    """What a token pays for ``r = log pi - log pi_ref`` (SDPG, arXiv:2606.04036); in ``exp`` r is -20 or more.

    >>> r = torch.tensor([0.0, 2.0])
    >>> [anchor_penalty(r, kind).tolist()[1] for kind in ("urkl", "rkl")]
    [2.0, 4.5]
    >>> anchor_penalty(r, "ufkl"), anchor_penalty(r, "fkl")  # e^-2 = 0.1353
    (tensor([1.0000, 2.1353]), tensor([1.0000, 0.1353]))
    """
    match anchor:
        case "urkl":
            return log_ratio.square() / 2
        case "rkl":
            return (log_ratio + 1).square() / 2
        case "ufkl":
            return (-log_ratio.clamp(min=-CLAMP_NATS)).exp() + log_ratio
        case "fkl":
            return (-log_ratio.clamp(min=-CLAMP_NATS)).exp()
        case "none":
            return torch.zeros_like(log_ratio)


def _student_head(model: nn.Module, temperature: float) -> Head:
    """The model's head, with its gradient where it is trained."""
    head, layer = head_of(model, temperature), cast(Any, unwrapped(model)).get_output_embeddings()
    if not head_is_trained(model):
        return head
    return replace(head, weight_VD=layer.weight, bias_V=getattr(layer, "bias", None))
