"""The distillation term on top of TRL's own loss, for methods whose credit says how much of it where.

``attach`` puts what the loss will need beside TRL's own columns, which TRL shuffles and splits by rows;
``loss_with_distillation`` is the loss of one micro-batch. TRL's forward of the student is captured, and repeated
only where left padding moves its positions. Knows no method: only ``distillation_of`` the one it is handed.
"""

# TRL and transformers are only partly typed; what crosses this seam is checked by the tests instead.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportPrivateUsage=false

from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from gear_rl.signals.forwards import backbone_of, evaluating, head_of, hidden_states, unwrapped
from gear_rl.signals.score import Prompts
from gear_rl.signals.teacher import LiveTeacher, Teacher
from gear_rl.tensor.distill import distillation_terms, token_logprobs
from gear_rl.tensor.logits import Head, predicting_positions
from gear_rl.traits import Anchor, Distillation, distillation_of
from gear_rl.types import Credit, TokenSignals

WEIGHT, REFERENCE = "gear_distill_weight", "gear_reference_logprob"
TEACHER_IDS, TEACHER_ATTENTION = "gear_teacher_ids", "gear_teacher_attention"
CLAMP_NATS = 20.0
"""Largest log-ratio that is exponentiated, as in SDPO's and SDPG's code."""


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


def check_distillation(method: str, *, sharding: str, zero_stage: int = 0, liger: bool = False) -> None:
    """Refuse what the term was never run with: the head's weights are needed outside of the model's forward.

    >>> check_distillation("sdpo", sharding="MULTI_GPU")
    >>> check_distillation("sdpo", sharding="DEEPSPEED", zero_stage=3)
    Traceback (most recent call last):
    ValueError: credit: 'sdpo' distils, which needs the whole head at each loss and was never run with DeepSpeed
    ZeRO-3; use one process, DDP or ZeRO-2
    """
    found = []
    if sharding == "FSDP":
        found.append(("FSDP", "use one process, DDP or ZeRO-2"))
    if sharding == "DEEPSPEED" and zero_stage == 3:
        found.append(("DeepSpeed ZeRO-3", "use one process, DDP or ZeRO-2"))
    if liger:
        found.append(("Liger's kernels", "set use_liger_kernel to False"))
    if found:
        names, fixes = zip(*found, strict=True)
        raise ValueError(
            f"credit: {method!r} distils, which needs the whole head at each loss and was never run with "
            f"{' and '.join(names)}; {' and '.join(dict.fromkeys(fixes))}"
        )


def check_trainer(trainer: Any) -> None:
    """``check_distillation`` of what the trainer runs with; ``ValueError`` if it refuses."""
    state = trainer.accelerator.state
    plugin: Any = getattr(state, "deepspeed_plugin", None)
    check_distillation(
        trainer.credit.name,
        sharding=str(trainer.accelerator.distributed_type).rpartition(".")[2],
        zero_stage=0 if plugin is None else int(plugin.zero_stage),
        liger=bool(trainer.args.use_liger_kernel),
    )


def loss_with_distillation(
    trainer: Any,
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
    check_trainer(trainer)
    batch = _batch(trainer, inputs, distillation)
    # Before the student's forward: lending weights writes into parameters that its graph has saved.
    teacher_ND, teacher_head = _teacher_states(trainer, batch)
    with _listening(backbone_of(model)) as heard:
        loss = own_loss(model, inputs)
    theirs = hidden = predicting_positions(heard[-1], batch.ids.shape[1])
    if (batch.distilled.any() or batch.reference is not None) and _is_moved(trainer, inputs):
        hidden = _student_states(trainer, batch, inputs)
    # Autocast would turn the products of the heads back into low precision.
    with torch.autocast(loss.device.type, enabled=False):
        distilled, anchored, sums = _sums(trainer, model, batch, hidden, theirs, teacher_ND, teacher_head)
    # As TRL's own token mean: `num_items_in_batch` spans the generation batch of all processes.
    accumulation = trainer.current_gradient_accumulation_steps
    share = accumulation / trainer.args.steps_per_generation / trainer.accelerator.num_processes
    normaliser = inputs["num_items_in_batch"].clamp(min=1.0) * share
    distilled, anchored = distilled / normaliser, anchored / normaliser
    # The logged loss is the sum over an accumulation window, and logged metrics are means over it.
    parts = torch.stack([distilled.detach(), anchored.detach()]).float() * accumulation
    _log(trainer, distillation, torch.cat([sums, parts / trainer.accelerator.num_processes]))
    return loss + distilled + anchored


@dataclass(frozen=True, slots=True, kw_only=True)
class _Batch:
    """One micro-batch as the term sees it."""

    distillation: Distillation
    ids: Tensor
    attention: Tensor
    mask: Tensor
    weight: Float[Tensor, "B T"]
    distilled: Bool[Tensor, "B T"]
    """Trained tokens with a weight other than 0 (NaN is one, too: it is left out later, and counted)."""
    teacher: Prompts
    old_logprob: Tensor | None
    reference: Tensor | None


def _batch(trainer: Any, inputs: dict[str, Any], distillation: Distillation) -> _Batch:
    attention = cast(Tensor, inputs["completion_mask"])
    mask = (attention * inputs["tool_mask"] if "tool_mask" in inputs else attention).bool()
    reference = cast(Tensor | None, inputs.get(REFERENCE))
    anchors = distillation.anchor != "none" and distillation.anchor_weight > 0
    if anchors and reference is None:
        raise ValueError(
            f"credit: {trainer.credit.name!r} is anchored to 'reference_logprob', which was not computed; list "
            "it in the method's `needs`"
        )
    weight = cast(Tensor, inputs[WEIGHT])
    return _Batch(
        distillation=distillation,
        ids=inputs["completion_ids"],
        attention=attention,
        mask=mask,
        weight=weight,
        distilled=mask & (weight != 0),
        teacher=Prompts(ids_BP=inputs[TEACHER_IDS], attention_BP=inputs[TEACHER_ATTENTION]),
        old_logprob=inputs.get("old_per_token_logps"),
        reference=reference if anchors else None,
    )


@contextmanager
def _listening(backbone: nn.Module) -> Generator[list[Tensor], None, None]:
    """The last hidden states of every forward inside, with their graph."""
    heard: list[Tensor] = []

    def keep(module: nn.Module, args: Any, output: Any) -> None:
        heard.append(output.last_hidden_state if hasattr(output, "last_hidden_state") else output[0])

    handle = backbone.register_forward_hook(keep)
    try:
        yield heard
    finally:
        handle.remove()


def _is_moved(trainer: Any, inputs: dict[str, Any]) -> bool:
    """Whether TRL's forward of this micro-batch stands at other positions than its rows had when sampled."""
    return not bool((inputs["prompt_mask"] > 0).all()) and bool(trainer._padding_moves)


def _student_states(trainer: Any, batch: _Batch, inputs: dict[str, Any]) -> Float[Tensor, "B T D"]:
    """The student's hidden states at the positions of the sampling, with their graph.

    Without DDP's wrapper, as other processes may have no padding: their gradients meet in the one backward.
    """
    ids = torch.cat([inputs["prompt_ids"], batch.ids], 1)
    attention = torch.cat([inputs["prompt_mask"], batch.attention], 1)
    return hidden_states(cast(nn.Module, trainer.model), ids, attention, num_tokens=batch.ids.shape[1])


@torch.no_grad()
def _teacher_states(trainer: Any, batch: _Batch) -> tuple[Tensor | None, Head | None]:
    """The teacher's hidden states at the distilled tokens, and its head where that is not the student's."""
    rows = batch.distilled.any(-1)
    if not rows.any():
        return None, None
    # The model without DDP's wrapper: that would wait for processes that have nothing to distil here.
    model = cast(nn.Module, trainer.model)
    kept = batch.distilled[rows]
    width = int(kept.any(0).nonzero().max().item()) + 1
    prompt, prompt_attention = batch.teacher.ids_BP[rows], batch.teacher.attention_BP[rows]
    begin = int(prompt_attention.any(0).nonzero().min().item()) if prompt_attention.any() else 0
    ids = torch.cat([prompt[:, begin:], batch.ids[rows][:, :width]], 1)
    attention = torch.cat([prompt_attention[:, begin:], batch.attention[rows][:, :width].long()], 1)
    lender = cast(Teacher, trainer._ready_teacher())
    borrows = not isinstance(lender, LiveTeacher)
    with evaluating(model), lender.weights(model) if borrows else nullcontext():
        hidden = hidden_states(model, ids, attention, num_tokens=width)[kept[:, :width]]
        head = None
        if borrows and _head_is_trained(model):
            # A copy: once the weights are handed back, the parameter is the student's again.
            own = head_of(model, trainer.temperature)
            bias = None if own.bias_V is None else own.bias_V.clone()
            head = replace(own, weight_VD=own.weight_VD.clone(), bias_V=bias)
    return hidden, head


def _head_is_trained(model: nn.Module) -> bool:
    inner: Any = unwrapped(model)
    return any(p.requires_grad for p in inner.get_output_embeddings().parameters())


def _student_head(model: nn.Module, temperature: float) -> Head:
    """The model's head, with its gradient where it is trained."""
    head, layer = head_of(model, temperature), cast(Any, unwrapped(model)).get_output_embeddings()
    if not _head_is_trained(model):
        return head
    return replace(head, weight_VD=layer.weight, bias_V=getattr(layer, "bias", None))


def _sums(
    trainer: Any,
    model: nn.Module,
    batch: _Batch,
    hidden: Float[Tensor, "B T D"],
    theirs: Float[Tensor, "B T D"],
    teacher_ND: Tensor | None,
    teacher_head: Head | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The two sums over this micro-batch, and (sum of terms, their number, number left out) for the log."""
    head, given = _student_head(model, trainer.temperature), batch.distillation
    zero = hidden.new_zeros((), dtype=torch.float32)
    distilled, anchored, sums = zero, zero, hidden.new_zeros(3, dtype=torch.float32)
    places = batch.distilled
    if teacher_ND is not None:
        terms, logprob = distillation_terms(
            hidden[places],
            teacher_ND,
            batch.ids[places],
            head,
            head_of(model, trainer.temperature) if teacher_head is None else teacher_head,
            beta=given.beta,
            top_k=given.top_k,
            top_k_of=given.top_k_of,
            tail=given.tail,
            temperature=given.temperature,
            max_nats=given.max_nats,
        )
        factor = batch.weight[places].float()
        if given.ratio_clip is not None:
            now = logprob.detach()
            if theirs is not hidden and batch.old_logprob is not None:
                # TRL's old log-prob stands at TRL's positions, and so must the one that it is compared with.
                with torch.no_grad():
                    now = token_logprobs(theirs[places], batch.ids[places], head)
            old = now if batch.old_logprob is None else batch.old_logprob[places]
            factor = factor * importance_ratio(now, old.detach(), given.ratio_clip)
        sound = terms.detach().isfinite() & factor.isfinite()
        # Both are replaced: 0 times what is not finite is NaN, in the backward pass as well.
        distilled = (torch.where(sound, factor, 0.0) * torch.where(sound, terms, 0.0)).sum()
        known = torch.where(sound, terms.detach(), 0.0)
        sums = torch.stack([known.sum(), sound.sum(), (~sound).sum()]).float()
    else:
        logprob = zero.new_zeros(0)
    if batch.reference is not None:
        rest = batch.mask & ~places
        others = token_logprobs(hidden[rest], batch.ids[rest], head)
        now = torch.cat([logprob, others])
        then = torch.cat([batch.reference[places], batch.reference[rest]])
        asked = ~then.isnan()
        sound = asked & then.isfinite() & now.detach().isfinite()
        log_ratio = torch.where(sound, now - then, 0.0)
        penalty = torch.where(sound, anchor_penalty(log_ratio, given.anchor), 0.0)
        anchored = given.anchor_weight * penalty.sum()
        sums = sums + torch.stack([zero, zero, (asked & ~sound).sum().float()])
    return distilled, anchored, sums


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


def _log(trainer: Any, distillation: Distillation, local: Float[Tensor, "5"]) -> None:
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
