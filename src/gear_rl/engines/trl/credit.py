"""The credit of a batch of TRL's rollouts: what is asked for, what it comes to, what is told of it.

Between the first two the signals are collected, at once or in TRL's own forwards (``late``). Knows no method:
it is handed an object.
"""

# TRL and transformers are only partly typed; what crosses this seam is checked by the tests instead.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportPrivateUsage=false

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from gear_rl.credit.metrics import FALLBACKS, cleaned, finite_rows, without
from gear_rl.engines.trl.report import log_credit, record
from gear_rl.engines.trl.rollouts import contexts_of, log_tools, teacher_prompts, tool_report
from gear_rl.engines.trl.signals import Batch, judged, needs_context, without_first
from gear_rl.signals.score import Completions, Prompts, needs_teacher
from gear_rl.traits import Scheduled, distillation_of, is_additive
from gear_rl.types import Credit, CreditAssigner, TokenSignals


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is to be credited, known before any signal is."""

    method: CreditAssigner
    advantage_B: Float[Tensor, " B"]
    """TRL's."""
    batch: Batch
    fallback_B: dict[str, Bool[Tensor, " B"]]
    sources: Sequence[str | None]
    """Where each completion's privileged context came from."""

    @property
    def asks(self) -> bool:
        """Whether the method wants to know anything."""
        return bool(self.method.needs) or distillation_of(self.method) is not None

    def rows(self, rows: Int[Tensor, " N"]) -> "Asked":
        """The same of some completions."""
        numbers = cast(list[int], rows.tolist())
        completions, student = self.batch.completions, self.batch.student
        return replace(
            self,
            advantage_B=self.advantage_B[rows],
            batch=replace(
                self.batch,
                completions=Completions(
                    ids=completions.ids[rows],
                    attention=completions.attention[rows],
                    mask=completions.mask[rows],
                ),
                student=_rows(student, rows),
                teachers=[_rows(teacher, rows) for teacher in self.batch.teachers],
                contexts=[self.batch.contexts[b] for b in numbers],
                scored_B=self.batch.scored_B[rows],
            ),
            fallback_B={name: value[rows] for name, value in self.fallback_B.items()},
            sources=[self.sources[b] for b in numbers],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """What it came to."""

    credit: Credit
    signals: TokenSignals
    fallback_B: dict[str, Bool[Tensor, " B"]]
    trusted_B: Bool[Tensor, " B"]
    """True where signals were seen and the credit is the method's own."""


def asked_of(trainer: Any, inputs: list[dict[str, Any]], output: dict[str, Any]) -> Asked:
    """What the trainer's method asks of TRL's rollouts: contexts are found, nothing is scored."""
    advantage_B: Tensor = output["advantages"]
    attention: Tensor = output["completion_mask"]
    mask = (attention * output["tool_mask"] if "tool_mask" in output else attention).bool()
    completions = Completions(ids=output["completion_ids"], attention=attention, mask=mask)
    student = Prompts(ids_BP=output["prompt_ids"], attention_BP=output["prompt_mask"])
    step = trainer.state.global_step
    method = trainer.credit.at_step(step) if isinstance(trainer.credit, Scheduled) else trainer.credit
    asks = bool(method.needs) or distillation_of(method) is not None

    fallback_B = {name: torch.zeros_like(advantage_B, dtype=torch.bool) for name in FALLBACKS}
    fallback_B["no_token"] = ~mask.any(-1)
    sources: list[str | None] = [None] * len(inputs)
    right: list[str | None] = [None] * len(inputs)
    teachers: list[Prompts] = []
    if needs_context(method):
        found, wrong = contexts_of(trainer, inputs, completions)
        sources = [None if pair is None else pair[0] for pair in found]
        right = [None if pair is None else pair[1] for pair in found]
        missing = torch.zeros_like(fallback_B["no_token"])
        # Only a teacher's signals are contrasted: a term of the loss or an answer's confidence is not.
        contrasts = wrong is not None and needs_teacher(method.needs)
        for texts in (right, wrong or []) if contrasts else (right,):
            missing |= torch.tensor([text is None for text in texts], device=mask.device)
            teachers.append(teacher_prompts(trainer, [text or "" for text in texts], student))
        fallback_B["no_context"] = missing & mask.any(-1)
    scored_B = mask.any(-1) & ~fallback_B["no_context"] & asks
    if not is_additive(method):
        # Where the advantage is 0 no weight changes anything, so nothing is scored.
        scored_B = scored_B & (advantage_B != 0)
    batch = Batch(
        completions=completions, student=student, teachers=teachers, contexts=right, scored_B=scored_B
    )
    return Asked(method=method, advantage_B=advantage_B, batch=batch, fallback_B=fallback_B, sources=sources)


def settle(trainer: Any, asked: Asked, signals: TokenSignals) -> Settled:
    """The method's credit where the signals can be trusted, the completion's own advantage elsewhere."""
    method, advantage_B, mask = asked.method, asked.advantage_B, asked.batch.completions.mask
    fallback_B, scored_B = dict(asked.fallback_B), asked.batch.scored_B
    finite_B = finite_rows(signals)
    fallback_B["non_finite"] = scored_B & ~finite_B
    falls = torch.stack(list(fallback_B.values())).any(0)
    # The others must not be compared with signals that a completion does not have.
    absent_B = (falls & ~fallback_B["no_token"]) | ~finite_B
    if "reward_B" in method.needs or "rewards_BR" in method.needs:
        # Nobody judged it, which is no reward of 0: TRL leaves it out of its group as well.
        absent_B = absent_B | ~judged(trainer, asked.batch.completions)
    falls = falls | absent_B
    asked_B = torch.where(falls, 0.0, advantage_B) if asked.asks else advantage_B
    alone = len(trainer._batch_rewards)  # no group of the batch has this number
    credit = cast(Credit, trainer._credit(method, asked_B, without(signals, absent_B, alone)))
    # A method of the user's may itself divide by zero.
    finite_B = credit.advantage.isfinite().all(-1)
    if credit.distill_weight is not None:
        finite_B = finite_B & credit.distill_weight.isfinite().all(-1)
    fallback_B["non_finite"] = fallback_B["non_finite"] | ~finite_B
    falls = falls | fallback_B["non_finite"]
    if asked.asks and not is_additive(method):
        falls = falls | (advantage_B == 0)  # nothing was seen there, so nothing may be added either
    if falls.any():
        credit = credit.falling_back(falls, advantage_B, mask)
        signals = cleaned(signals, ~fallback_B["non_finite"])
    if credit.distill_weight is not None:
        if not asked.batch.teachers:
            raise ValueError(
                f"credit: {method.name!r} gives distill_weight, but has no `distillation` that says which "
                "term it weighs; see gear_rl.traits.Distilling"
            )
        credit = without_first(credit, signals, trainer.args.teacher_skip_first_tokens)
    return Settled(credit=credit, signals=signals, fallback_B=fallback_B, trusted_B=scored_B & ~falls)


def for_loss(asked: Asked, credit: Credit) -> Tensor:
    """The advantage of every token, shape (B, T); TRL's own tensor if every weight is 1.

    One number per completion then, so that GRPO stays GRPO bit for bit in every loss: where TRL works on
    whole sequences, the same number repeated T times is summed in another order.
    """
    plain = torch.where(asked.batch.completions.mask, asked.advantage_B[:, None], 0.0)
    return asked.advantage_B if torch.equal(credit.advantage, plain) else credit.advantage


def report(trainer: Any, asked: Asked, settled: Settled, output: dict[str, Any], seconds: float) -> None:
    """Log the metrics of the batch and write its records; every process comes here."""
    scored_B, credit, signals = asked.batch.scored_B, settled.credit, settled.signals
    tools = tool_report(trainer, asked.batch.completions)
    log_credit(trainer, credit, signals, asked.advantage_B, scored_B, settled.fallback_B, seconds)
    log_tools(trainer, tools, list(asked.sources))
    if trainer.args.record_file is not None:
        record(trainer, output, credit, signals, scored_B, settled.fallback_B, tools, list(asked.sources))


def _rows(prompts: Prompts, rows: Int[Tensor, " N"]) -> Prompts:
    return Prompts(ids_BP=prompts.ids_BP[rows], attention_BP=prompts.attention_BP[rows])
