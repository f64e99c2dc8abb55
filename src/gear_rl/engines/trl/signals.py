"""Every signal that a method needs of a batch of TRL's rollouts, and no other.

Knows no method: it reads names from ``needs``.
"""

# TRL and transformers are only partly typed; what crosses this seam is checked by the tests instead.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportPrivateUsage=false

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from gear_rl.engines.trl.checks import SHARDED, gathered_head
from gear_rl.engines.trl.turns import turn_signals
from gear_rl.signals.answers import answer_regions
from gear_rl.signals.confidence import answer_confidence, confidence_batches
from gear_rl.signals.contexts import contrasted, skipping_first
from gear_rl.signals.prefix import shared_prompts
from gear_rl.signals.privileged import fill
from gear_rl.signals.saliency import SALIENCY_SIGNALS, num_saliency_batches, saliency
from gear_rl.signals.score import (
    Completions,
    Prompts,
    StudentStates,
    TeacherStates,
    needs_teacher,
    score,
    teacher_states,
)
from gear_rl.signals.teacher import LiveTeacher, Teacher
from gear_rl.signals.text_units import line_ids, sentence_ids
from gear_rl.signals.transport import num_transport_batches, transport_distances
from gear_rl.traits import distillation_of
from gear_rl.types import ROW_SIGNALS, Credit, CreditAssigner, TokenSignals, signal_of, signals_where

_TEXT_SIGNALS = signals_where(lambda signal: signal.made_by == "text")


def needs_context(method: CreditAssigner) -> bool:
    """Whether the method reads a privileged context: it compares with a teacher, distils, or asks for it."""
    return (
        needs_teacher(method.needs)
        or "answer_confidence" in method.needs
        or distillation_of(method) is not None
    )


def needs_passes(method: CreditAssigner) -> bool:
    """Whether the method costs forward passes of the model."""
    return distillation_of(method) is not None or any(signal_of(name).costs_passes for name in method.needs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What the signals of a batch are made from."""

    completions: Completions
    student: Prompts
    teachers: Sequence[Prompts]
    """The teacher's prompts, and those with the wrong context where there is a contrast."""
    contexts: Sequence[str | None]
    """The privileged context of each completion."""
    scored_B: Tensor
    """True on the completions whose signals will be read."""
    student_states: StudentStates | None = None
    """Where a forward of TRL's left the student's hidden states; None for a pass of our own."""
    taught: TeacherStates | None = None
    """The teacher's pass, where it was run ahead."""
    late: bool = False
    """Whether this is a micro-batch in its loss; the weights are no sharded ones then."""


def collect(trainer: Any, needs: Sequence[str], batch: Batch) -> TokenSignals:
    """The signals of every completion of this process; 0 in rows that are not scored, where a pass makes them."""
    completions, scored_B = batch.completions, batch.scored_B
    rows = _rows_at_once(trainer)
    # Nobody waits for anybody's forwards there.
    most = 0 if batch.late else _most(trainer, -(-int(scored_B.sum()) // rows), scored_B)
    common: dict[str, Any] = {"row_B": scored_B, "batch_size": rows}
    read: dict[str, Any] = {
        "temperature": trainer.temperature,
        "head_context": gathered_head,
    }
    signals = _compared(trainer, needs, batch, common | read | {"num_batches": most})
    found: dict[str, Tensor] = {}
    if "reference_logprob" in needs:
        own = score(
            trainer.model,
            completions,
            batch.student,
            batch.student,
            needs=["teacher_logprob"],
            teacher_weights=trainer._ready_reference().weights,
            num_batches=most,
            **common,
            **read,
        )
        found["reference_logprob"] = own.get("teacher_logprob")
    asked = [name for name in SALIENCY_SIGNALS if name in needs]
    finds_answer = bool(asked) or "answer_region" in needs
    reads_text = finds_answer or any(name in _TEXT_SIGNALS for name in needs)
    texts = _texts(trainer, completions) if reads_text else []
    if "sentence_id" in needs:
        found["sentence_id"] = sentence_ids(texts, completions.mask)
    if "line_id" in needs:
        found["line_id"] = line_ids(texts, completions.mask)
    if finds_answer:
        region = answer_regions(texts, completions.mask, trainer.args.answer_pattern)
        if "answer_region" in needs:
            found["answer_region"] = region
        answered_B = (region == 1).any(-1)
        trainer._metrics["train"]["gear/answers"].append(_share(trainer, answered_B))
        if asked:
            found |= saliency(
                trainer.model,
                completions,
                batch.student,
                region,
                needs=asked,
                pad_id=cast(int, trainer._tokenizer.pad_token_id),
                readout=trainer.args.saliency_readout,
                layer=trainer.args.saliency_layer,
                loss_span=trainer.args.saliency_span,
                noise_std=trainer.args.saliency_noise,
                seed=trainer.args.seed + trainer.state.global_step,
                num_batches=_most(trainer, num_saliency_batches(region, asked, scored_B, rows), scored_B),
                **common,
                **read,
            )
    if "answer_confidence" in needs:
        answers = _answers(trainer, batch.contexts)
        count = confidence_batches(completions.mask, answers, scored_B, rows)
        found["answer_confidence"] = answer_confidence(
            trainer.model,
            completions,
            batch.student,
            answers,
            num_batches=_most(trainer, count, scored_B),
            **common,
            **read,
        )
    found |= _outcomes(trainer, needs, completions)
    if "transport_distance" in needs:
        succeeded_B = _rewards(trainer, completions) >= trainer.args.success_reward
        # What nobody judged came out neither right nor wrong: it is compared with nothing.
        own_B = torch.arange(len(succeeded_B), device=succeeded_B.device)
        group_B = torch.where(judged(trainer, completions), _groups(trainer, completions), -1 - own_B)
        count = num_transport_batches(completions.mask, group_B, succeeded_B, row_B=scored_B, batch_size=rows)
        found["transport_distance"] = transport_distances(
            trainer.model,
            completions,
            batch.student,
            group_B,
            succeeded_B,
            num_batches=_most(trainer, count, scored_B),
            window_tokens=trainer.args.transport_window_tokens,
            stride_tokens=trainer.args.transport_stride_tokens,
            **common,
        )
    if "token_id" in needs:
        found["token_id"] = torch.where(completions.mask, completions.ids.long(), -1)
    if "turn_reward" in needs or "anchor_id" in needs:
        found |= turn_signals(trainer, needs, completions)
    return replace(signals, **cast(dict[str, Any], found))


def taught(trainer: Any, needs: Sequence[str], batch: Batch) -> TeacherStates | None:
    """The teacher's pass of ``collect`` by itself; None where no signal needs one."""
    if not needs_teacher(needs):
        return None
    [teacher] = batch.teachers
    return teacher_states(
        trainer.model,
        batch.completions,
        teacher,
        temperature=trainer.temperature,
        teacher_weights=_lent_weights(trainer),
        head_context=gathered_head,
        row_B=batch.scored_B,
        batch_size=_rows_at_once(trainer),
        share_prompts=trainer._sharding not in SHARDED,
    )


def shares_prompts(batch: Batch) -> bool:
    """Whether the teacher's prompts are worth sharing among the completions that are scored."""
    if not batch.teachers:
        return False
    scored_B, teacher = batch.scored_B, batch.teachers[0]
    longest = int(batch.completions.mask[scored_B].sum(-1).max()) if scored_B.any() else 0
    return (
        shared_prompts(teacher.ids_BP[scored_B], teacher.attention_BP[scored_B], num_tokens=longest)
        is not None
    )


def of_all_processes(
    trainer: Any, advantage_B: Tensor, signals: TokenSignals
) -> tuple[Tensor, TokenSignals, slice]:
    """The same of the completions of all processes, and which rows are this one's; siblings may be spread."""
    accelerator, rows = trainer.accelerator, len(advantage_B)
    first = accelerator.process_index * rows
    if accelerator.num_processes == 1:
        return advantage_B, signals, slice(0, rows)
    everyones: dict[str, Any] = {}
    for name in (*signals.__dataclass_fields__,):
        value: Tensor | None = getattr(signals, name)
        if value is None:
            continue
        if value.dim() == 2 and name not in ROW_SIGNALS:
            # Integer signals are -1 outside the mask, and padding is outside.
            fill_with = -1 if value.dtype == torch.int64 else 0
            if value.dtype == torch.bool:
                value = value.long()  # padding would make it one, on those processes alone that have to pad
            value = accelerator.pad_across_processes(value, dim=1, pad_index=fill_with)
        everyones[name] = accelerator.gather(value)
    everyones["mask"] = everyones["mask"].bool()
    return accelerator.gather(advantage_B), TokenSignals(**everyones), slice(first, first + rows)


def without_first(credit: Credit, signals: TokenSignals, num_tokens: int) -> Credit:
    """The same credit that distils nothing of the first tokens of every turn, where the teacher is to agree."""
    if credit.distill_weight is None:
        return credit
    # A divergence is 0 there, and so is what multiplies one.
    weighed = TokenSignals(mask=signals.mask, turn_id=signals.turn_id, divergence=credit.distill_weight)
    return replace(credit, distill_weight=skipping_first(weighed, num_tokens).divergence)


def _compared(trainer: Any, needs: Sequence[str], batch: Batch, options: dict[str, Any]) -> TokenSignals:
    """The signals of the student's pass, and of the teacher's beside it."""
    wanted, skip = tuple(needs), trainer.args.teacher_skip_first_tokens
    if "teacher_logprob" in wanted and "student_logprob" not in wanted and (skip or len(batch.teachers) > 1):
        wanted = (*wanted, "student_logprob")  # what a log-ratio of 0 is measured from
    wanted = tuple(name for name in wanted if signal_of(name).made_by == "passes")
    teachers = batch.teachers or [None]
    passes = [
        score(
            trainer.model,
            batch.completions,
            batch.student,
            teacher,
            needs=wanted if i == 0 else [name for name in wanted if signal_of(name).teacher],
            teacher_weights=_lent_weights(trainer),
            student_states=batch.student_states,
            share_prompts=trainer._sharding not in SHARDED,
            **options,
        )
        for i, teacher in enumerate(teachers if batch.taught is None else [batch.taught])
    ]
    signals = passes[0] if len(passes) == 1 else contrasted(*passes)
    return skipping_first(signals, skip)


def _lent_weights(trainer: Any) -> Callable[[nn.Module], AbstractContextManager[None]] | None:
    lender: Teacher = trainer._ready_teacher()
    return None if isinstance(lender, LiveTeacher) else lender.weights


def _rows_at_once(trainer: Any) -> int:
    return trainer.args.credit_batch_size or trainer.args.per_device_train_batch_size


def _outcomes(trainer: Any, needs: Sequence[str], completions: Completions) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    if "group_B" in needs:
        found["group_B"] = _groups(trainer, completions)
    if "reward_B" in needs:
        found["reward_B"] = _rewards(trainer, completions)
    if "rewards_BR" in needs:
        first, rows = _place(trainer, completions)
        found["rewards_BR"] = trainer._rewards_each[first : first + rows].to(completions.mask.device)
    return found


def _place(trainer: Any, completions: Completions) -> tuple[int, int]:
    rows = len(completions.mask)
    return trainer.accelerator.process_index * rows, rows


def _groups(trainer: Any, completions: Completions) -> Tensor:
    first, rows = _place(trainer, completions)
    place = torch.arange(first, first + rows, device=completions.mask.device)
    return place // trainer.num_generations


def _rewards(trainer: Any, completions: Completions) -> Tensor:
    first, rows = _place(trainer, completions)
    own: list[float | None] = trainer._batch_rewards[first : first + rows]
    return torch.tensor([reward or 0.0 for reward in own], device=completions.mask.device)


def judged(trainer: Any, completions: Completions) -> Tensor:
    """True on this process's completions to which any reward function gave a reward."""
    first, rows = _place(trainer, completions)
    own: list[float | None] = trainer._batch_rewards[first : first + rows]
    return torch.tensor([reward is not None for reward in own], device=completions.mask.device)


def _texts(trainer: Any, completions: Completions) -> list[list[str]]:
    """Every token of every completion, decoded alone."""
    tokenizer: Any = trainer._tokenizer
    known: dict[int, str] = {}
    texts: list[list[str]] = []
    for ids in cast(list[list[int]], completions.ids.tolist()):
        for token in ids:
            if token not in known:
                known[token] = tokenizer.decode([token])
        texts.append([known[token] for token in ids])
    return texts


def _answers(trainer: Any, contexts: Sequence[str | None]) -> list[list[int]]:
    """The ids of the ground truth as the student would write it; empty where there is none."""
    tokenizer: Any = trainer._tokenizer
    written = [
        fill(trainer.args.answer_template, privileged_context=context) if context else ""
        for context in contexts
    ]
    return [
        tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"] if text else []
        for text in written
    ]


def _most(trainer: Any, count: int, like: Tensor) -> int:
    """The largest count of all processes: where the model is sharded, every one takes part in every forward."""
    return int(cast(Tensor, trainer.accelerator.gather(torch.tensor(count, device=like.device))).max())


def _share(trainer: Any, row_B: Tensor) -> float:
    everyone = cast(Tensor, trainer.accelerator.gather(row_B.float()))
    return float(everyone.mean()) if len(everyone) else 0.0
