"""The distillation term of a loss, weighted per token by the credit. Knows no trainer.

``sum_t weight_t ratio_t term_t + anchor_weight f(r_t)`` over the tokens of some completions. An engine gives
the student's hidden states with their graph, and divides the sums as it divides its own loss.
"""

from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from gear_rl.engine import ForwardRequest
from gear_rl.model.forwards import head_is_trained, head_of, unwrap_model
from gear_rl.model.teacher import Teacher
from gear_rl.rollouts import Completions, Prompts
from gear_rl.signals.passes import ModelPasses, RowImages
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
    """The teacher's prompts; a row whose weights are all 0 is not run."""
    old_logprob: Float[Tensor, "B T"] | None
    """Of the policy that sampled; None where that is the current policy."""
    reference: Float[Tensor, "B T"] | None
    """``reference_logprob``, NaN where it was not computed; None without an anchor."""

    @property
    def distilled(self) -> Bool[Tensor, "B T"]:
        """Trained tokens with a weight other than 0; NaN included, which is left out and counted later."""
        return self.mask & (self.weight != 0)


@torch.no_grad()
def teacher_hidden(
    model: nn.Module,
    batch: DistilledBatch,
    teacher: Teacher,
    temperature: float,
    images: RowImages | None = None,
) -> tuple[Float[Tensor, "N D"] | None, Head | None]:
    """The teacher's hidden states at the distilled tokens, and its head if it is not the student's.

    None where nothing is distilled. Call it before the student's forward: lending weights writes into parameters
    that its graph has saved. ``model`` is without DDP's wrapper, which would wait for processes with nothing to
    distil.
    """
    places = batch.distilled
    if not places.any():
        return None, None
    passes = ModelPasses(
        model=model,
        pad_id=0,
        teacher=teacher,
        reference=teacher,
        temperature=temperature,
        batch_size=len(places),
        share_prompts=False,
        images=images,
    )
    request = ForwardRequest(
        needs=(),
        step=0,
        completions=Completions(ids=batch.ids, attention=batch.attention, mask=places),
        student=batch.teacher,
        teachers=[batch.teacher],
        scored_B=places.any(-1),
    )
    states = passes.teacher_states(request, batch.teacher)
    return states(torch.arange(len(places), device=places.device), places), states.head


def distillation_sums(
    batch: DistilledBatch,
    hidden: Float[Tensor, "B T D"],
    engines_hidden: Float[Tensor, "B T D"],
    model: nn.Module,
    teacher_ND: Float[Tensor, "N D"] | None,
    teacher_head: Head | None,
    temperature: float,
) -> tuple[Float[Tensor, ""], Float[Tensor, ""], Float[Tensor, "3"]]:
    """The sum of the distillation terms and that of the anchor, both with their graph, and three counts.

    The counts: the unweighted sum of the terms, their number, and the number of terms and anchors that are left
    out because they are not finite. ``hidden`` are the student's states that predict each token,
    ``engines_hidden`` those of the engine's own forward, another tensor only if that counts positions from the
    padding on.
    """
    frozen_head, given, places = head_of(model, temperature), batch.distillation, batch.distilled
    head = frozen_head
    if head_is_trained(model):
        layer = cast(Any, unwrap_model(model)).get_output_embeddings()
        head = replace(head, weight_VD=layer.weight, bias_V=getattr(layer, "bias", None))
    distilled = anchored = hidden.new_zeros((), dtype=torch.float32)
    counts = hidden.new_zeros(3, dtype=torch.float32)
    logprob = distilled.new_zeros(0)
    if teacher_ND is not None:
        terms, logprob = distillation_terms(
            hidden[places],
            teacher_ND,
            batch.ids[places],
            head,
            frozen_head if teacher_head is None else teacher_head,
            beta=given.beta,
            top_k=given.top_k,
            top_k_of=given.top_k_of,
            tail=given.tail,
            temperature=given.temperature,
            max_nats=given.max_nats,
        )
        moved = engines_hidden[places] if engines_hidden is not hidden else None
        factor = _weights_of_terms(batch, logprob.detach(), moved, head)
        finite = terms.detach().isfinite() & factor.isfinite()
        # Both are replaced: 0 times what is not finite is NaN, in the backward pass as well.
        distilled = (torch.where(finite, factor, 0.0) * torch.where(finite, terms, 0.0)).sum()
        known = torch.where(finite, terms.detach(), 0.0)
        counts = torch.stack([known.sum(), finite.sum(), (~finite).sum()]).float()
    if batch.reference is not None:
        rest = batch.mask & ~places
        now = torch.cat([logprob, token_logprobs(hidden[rest], batch.ids[rest], head)])
        then = torch.cat([batch.reference[places], batch.reference[rest]])
        known = ~then.isnan()
        finite = known & then.isfinite() & now.detach().isfinite()
        log_ratio = torch.where(finite, now - then, 0.0)
        penalty = torch.where(finite, anchor_penalty(log_ratio, given.anchor), 0.0)
        anchored = given.anchor_weight * penalty.sum()
        counts[2] += (known & ~finite).sum()
    return distilled, anchored, counts


def _weights_of_terms(
    batch: DistilledBatch,
    now: Float[Tensor, " N"],
    engines_hidden_ND: Float[Tensor, "N D"] | None,
    head: Head,
) -> Float[Tensor, " N"]:
    """The weight of every distilled token, times its importance ratio; ``now`` are the tokens' log-probs."""
    places, clip = batch.distilled, batch.distillation.ratio_clip
    weight = batch.weight[places].float()
    if clip is None:
        return weight
    if batch.old_logprob is None:
        return weight * importance_ratio(now, now, clip)
    if engines_hidden_ND is not None:
        # The old log-prob is that of the engine's positions, so the new one must be too.
        with torch.no_grad():
            now = token_logprobs(engines_hidden_ND, batch.ids[places], head)
    return weight * importance_ratio(now, batch.old_logprob[places].detach(), clip)


def importance_ratio(
    logprob: Float[Tensor, " N"], old_logprob: Float[Tensor, " N"], clip: float
) -> Float[Tensor, " N"]:
    """``min(exp(log pi - log pi_old), clip)``, the log-ratio clamped to 20 nats before (SDPO, arXiv:2601.20802).

    >>> importance_ratio(torch.tensor([0.5, 3.0]).log(), torch.tensor([1.0, 1.0]).log(), clip=2.0)
    tensor([0.5000, 2.0000])
    """
    return (logprob - old_logprob).clamp(-CLAMP_NATS, CLAMP_NATS).exp().clamp(max=clip)


def anchor_penalty(log_ratio: Float[Tensor, " N"], anchor: Anchor) -> Float[Tensor, " N"]:
    """The penalty of a token for ``r = log pi - log pi_ref`` (SDPG, arXiv:2606.04036); ``exp(-r)`` has r >= -20.

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
