"""The distillation term on top of TRL's own loss, for methods whose credit says how much of it where.

``attach`` puts what the loss will need beside TRL's own columns, which TRL shuffles and splits by rows;
``loss_with_distillation`` is the loss of one micro-batch. TRL's forward of the student is captured, and repeated
only where left padding moves its positions. Knows no method: only ``distillation_of`` the one that it is given.
"""

from collections.abc import Callable
from typing import Any, cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from gear_rl.credit.distillation import DistilledBatch, distillation_sums, teacher_hidden
from gear_rl.engines.trl.trainer_type import Trainer
from gear_rl.signals.forwards import capturing, hidden_states
from gear_rl.signals.score import Prompts
from gear_rl.tensor.logits import predicting_positions
from gear_rl.traits import Distillation, distillation_of
from gear_rl.types import Credit, TokenSignals

WEIGHT, REFERENCE = "gear_distill_weight", "gear_reference_logprob"
TEACHER_IDS, TEACHER_ATTENTION = "gear_teacher_ids", "gear_teacher_attention"


def attach(
    output: dict[str, Any],
    credit: Credit,
    signals: TokenSignals,
    teacher_prompts: Prompts,
    seen_B: Bool[Tensor, " B"] | None = None,
) -> None:
    """Put into TRL's ``output`` what the loss of a credit that distils needs; nothing for any other credit.

    ``teacher_prompts`` has one row per completion; a row whose weights are all 0 is never run, so any prompt
    will do there (the student's). ``seen_B`` says in which rows the signals were computed: where they were not,
    a reference log-prob of 0 stands for nothing, and the anchor leaves the row alone.
    """
    if credit.distill_weight is None:
        return
    output[WEIGHT] = credit.distill_weight
    output[TEACHER_IDS] = teacher_prompts.ids_BP
    output[TEACHER_ATTENTION] = teacher_prompts.attention_BP
    reference = signals.reference_logprob
    if reference is not None:
        known = signals.mask if seen_B is None else signals.mask & seen_B[:, None]
        output[REFERENCE] = torch.where(known, reference, torch.nan)


def loss_with_distillation(
    trainer: Trainer,
    model: nn.Module,
    inputs: dict[str, Any],
    own_loss: Callable[[nn.Module, dict[str, Any]], Tensor],
) -> Tensor:
    """TRL's loss of a micro-batch, and on top of it what the method distils and what it is anchored with.

    ``sum_t weight_t ratio_t term_t + anchor_weight f(r_t)`` over the trained tokens, divided as TRL divides its
    token means (``loss_type: dapo``): by the trained tokens of the whole generation batch over all processes, so
    that no split into micro-batches or processes changes it, whatever ``loss_type`` TRL's own loss has. A term
    or anchor that is not finite is left out and counted. ``ratio_t`` is constant: probability now over
    probability when sampled, both TRL's, 1 where TRL keeps no old log-prob because they are the same. Where left
    padding moves the positions of TRL's forward (GPT-2), term and anchor come from a forward of our own.

    The settings are those of ``trainer.credit``; a schedule speaks through the weights.
    """
    distillation = distillation_of(trainer.credit) if WEIGHT in inputs else None
    if distillation is None:
        return own_loss(model, inputs)
    batch, temperature = _batch(trainer, inputs, distillation), trainer.temperature
    # Before the student's forward: lending weights writes into parameters that its graph has saved.
    teacher_ND, teacher_head = teacher_hidden(trainer.model, batch, trainer.ready_teacher(), temperature)
    captured: list[Tensor] = []
    with capturing(model, captured.append):
        loss = own_loss(model, inputs)
    theirs = hidden = predicting_positions(captured[-1], batch.ids.shape[1])
    if (batch.distilled.any() or batch.reference is not None) and _is_moved(trainer, inputs):
        hidden = _student_states(trainer, batch, inputs)
    # Autocast would turn the products of the heads back into low precision.
    with torch.autocast(loss.device.type, enabled=False):
        sums = distillation_sums(batch, hidden, theirs, model, teacher_ND, teacher_head, temperature)
    # As TRL's own token mean: `num_items_in_batch` spans the generation batch of all processes.
    accumulation = trainer.current_gradient_accumulation_steps
    share = accumulation / cast(int, trainer.args.steps_per_generation) / trainer.accelerator.num_processes
    normaliser = inputs["num_items_in_batch"].clamp(min=1.0) * share
    distilled, anchored = sums.distilled / normaliser, sums.anchored / normaliser
    # The logged loss is the sum over an accumulation window, and logged metrics are means over it.
    parts = torch.stack([distilled.detach(), anchored.detach()]).float() * accumulation
    _log(trainer, distillation, torch.cat([sums.counts, parts / trainer.accelerator.num_processes]))
    return loss + distilled + anchored


def _batch(trainer: Trainer, inputs: dict[str, Any], distillation: Distillation) -> DistilledBatch:
    attention = cast(Tensor, inputs["completion_mask"])
    mask = (attention * inputs["tool_mask"] if "tool_mask" in inputs else attention).bool()
    reference = cast(Tensor | None, inputs.get(REFERENCE))
    anchors = distillation.anchor != "none" and distillation.anchor_weight > 0
    if anchors and reference is None:
        raise ValueError(
            f"credit: {trainer.credit.name!r} is anchored to 'reference_logprob', which was not computed; list "
            "it in the method's `needs`"
        )
    return DistilledBatch(
        distillation=distillation,
        ids=inputs["completion_ids"],
        attention=attention,
        mask=mask,
        weight=inputs[WEIGHT],
        teacher=Prompts(ids_BP=inputs[TEACHER_IDS], attention_BP=inputs[TEACHER_ATTENTION]),
        old_logprob=inputs.get("old_per_token_logps"),
        reference=reference if anchors else None,
    )


def _is_moved(trainer: Trainer, inputs: dict[str, Any]) -> bool:
    """Whether TRL's forward of this micro-batch stands at other positions than its rows had when sampled."""
    return not bool((inputs["prompt_mask"] > 0).all()) and bool(trainer.padding_moves)


def _student_states(
    trainer: Trainer, batch: DistilledBatch, inputs: dict[str, Any]
) -> Float[Tensor, "B T D"]:
    """The student's hidden states at the positions of the sampling, with their graph.

    Without DDP's wrapper, as other processes may have no padding: their gradients meet in the one backward.
    """
    ids = torch.cat([inputs["prompt_ids"], batch.ids], 1)
    attention = torch.cat([inputs["prompt_mask"], batch.attention], 1)
    return hidden_states(cast(nn.Module, trainer.model), ids, attention, num_tokens=batch.ids.shape[1])


def _log(trainer: Trainer, distillation: Distillation, local: Float[Tensor, "5"]) -> None:
    """Metrics over all processes: every one of them comes here in every micro-batch."""
    reduced = cast(Tensor, trainer.accelerator.reduce(local, reduction="sum"))
    total, count, left_out, distilled, anchored = reduced.tolist()
    metrics = trainer._metrics["train"]
    if count:
        metrics["gear/distill/term"].append(total / count)
    metrics["gear/distill/loss"].append(distilled)
    metrics["gear/distill/non_finite"].append(left_out)
    if distillation.anchor != "none" and distillation.anchor_weight > 0:
        metrics["gear/anchor/loss"].append(anchored)
