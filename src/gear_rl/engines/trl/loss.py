"""What is added to TRL's loss: the distillation term and its anchor. Knows no method."""

from collections.abc import Callable
from typing import Any, cast

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from gear_rl.credit.distillation import DistilledBatch, distillation_sums, teacher_hidden
from gear_rl.engines.trl.engine import TRLEngine
from gear_rl.engines.trl.images import images_of
from gear_rl.engines.trl.rollouts import completions_of
from gear_rl.model.forwards import capturing, hidden_states
from gear_rl.rollouts import Prompts
from gear_rl.tensor.logits import predicting_positions
from gear_rl.traits import Distillation
from gear_rl.types import Credit, TokenSignals

WEIGHT, REFERENCE = "gear_distill_weight", "gear_reference_logprob"
TEACHER_IDS, TEACHER_ATTENTION = "gear_teacher_ids", "gear_teacher_attention"


def attach(
    output: dict[str, Any],
    credit: Credit,
    signals: TokenSignals,
    teacher_prompts: Prompts,
    seen_B: Bool[Tensor, " B"],
) -> None:
    """Put into TRL's ``output``, which TRL shuffles and splits by rows, what the distilling loss needs.

    ``seen_B`` is True in rows whose signals were computed. Elsewhere the reference log-prob is no number (NaN
    here), and the row is not anchored.
    """
    output[WEIGHT] = credit.distill_weight
    output[TEACHER_IDS] = teacher_prompts.ids_BP
    output[TEACHER_ATTENTION] = teacher_prompts.attention_BP
    reference = signals.values.get("reference_logprob")
    if reference is not None:
        output[REFERENCE] = torch.where(signals.mask & seen_B[:, None], reference, torch.nan)


def loss_with_distillation(
    own_loss: Callable[[nn.Module, dict[str, Any]], Tensor],
    model: nn.Module,
    inputs: dict[str, Any],
    distillation: Distillation,
    engine: TRLEngine,
    *,
    accumulation: int,
    padding_moves: bool,
) -> Tensor:
    """TRL's loss of a micro-batch plus the method's distillation term and its anchor.

    ``sum_t weight_t ratio_t term_t + anchor_weight f(r_t)`` over the trained tokens, divided by the number of
    trained tokens of the generation batch over all processes, so no split changes it. ``ratio_t`` is constant:
    the probability now over that when sampled, 1 where TRL keeps no old log-prob (they are the same). A term or
    anchor that is not finite is left out and counted. Where left padding moves the positions of TRL's forward
    (GPT-2), both come from a forward of our own.
    """
    batch = _distilled_batch(inputs, distillation, engine.trainer.credit.name)
    passes = engine.passes
    temperature, student, images = passes.temperature, passes.model, images_of(inputs)
    # Before the student's forward: lending weights writes into parameters that its graph has saved.
    teacher_ND, teacher_head = teacher_hidden(student, batch, passes.teacher, temperature, images)
    captured: list[Tensor] = []
    with capturing(model, captured.append):
        loss = own_loss(model, inputs)
    theirs = hidden = predicting_positions(captured[-1], batch.ids.shape[1])
    moved = padding_moves and images is None and not bool((inputs["prompt_mask"] > 0).all())
    if moved and (batch.distilled.any() or batch.reference is not None):
        # Without DDP's wrapper, as other processes may have no padding: their gradients meet in the one backward.
        ids = torch.cat([inputs["prompt_ids"], batch.ids], 1)
        attention = torch.cat([inputs["prompt_mask"], batch.attention], 1)
        hidden = hidden_states(student, ids, attention, num_tokens=batch.ids.shape[1])
    # Autocast would turn the products of the heads back into low precision.
    with torch.autocast(loss.device.type, enabled=False):
        distilled, anchor, counts = distillation_sums(
            batch, hidden, theirs, model, teacher_ND, teacher_head, temperature
        )
    # As TRL's own token mean: `num_items_in_batch` spans the generation batch of all processes.
    steps = cast(int, engine.trainer.args.steps_per_generation)
    share = accumulation / steps / engine.world_size
    normaliser = inputs["num_items_in_batch"].clamp(min=1.0) * share
    term, anchor = distilled / normaliser, anchor / normaliser
    # The logged loss is the sum over an accumulation window, and logged metrics are means over it.
    parts = torch.stack([term.detach(), anchor.detach()]).float() * accumulation
    local = torch.cat([counts, parts / engine.world_size])
    total, count, left_out, *logged = engine.gather(local[None]).sum(0).tolist()
    metrics = {"gear/distill/loss": logged[0], "gear/distill/non_finite": left_out}
    if count:
        metrics["gear/distill/term"] = total / count
    if batch.reference is not None:
        metrics["gear/anchor/loss"] = logged[1]
    engine.log(metrics)
    return loss + term + anchor


def _distilled_batch(inputs: dict[str, Any], distillation: Distillation, method: str) -> DistilledBatch:
    """The completions of a micro-batch; ``ValueError`` for a method whose anchor was not computed."""
    completions, reference = completions_of(inputs), cast(Tensor | None, inputs.get(REFERENCE))
    anchored = distillation.anchor != "none" and distillation.anchor_weight > 0
    if anchored and reference is None:
        raise ValueError(
            f"credit: {method!r} is anchored to 'reference_logprob', which was not computed; list it in the "
            "method's `needs`"
        )
    return DistilledBatch(
        distillation=distillation,
        ids=completions.ids,
        attention=completions.attention,
        mask=completions.mask,
        weight=inputs[WEIGHT],
        teacher=Prompts(ids_BP=inputs[TEACHER_IDS], attention_BP=inputs[TEACHER_ATTENTION]),
        old_logprob=inputs.get("old_per_token_logps"),
        reference=reference if anchored else None,
    )
