"""The credit step: contexts, signals, the method, fallbacks, metrics, records, in this order.

Knows no trainer and no method.
"""

import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor

from gear_rl.credit.contexts import PrivilegedFunction
from gear_rl.credit.credit_config import SOURCES, CreditConfig
from gear_rl.credit.metrics import metric_sums, step_metrics
from gear_rl.credit.plan import CreditPlan, CreditResult
from gear_rl.credit.result_records import records_of
from gear_rl.credit.siblings import clean_rows, credit_beside_siblings, finite_rows, leave_out_rows, mean_over
from gear_rl.credit.teacher_check import TeacherCheck
from gear_rl.credit.teacher_prompts import prompts_for
from gear_rl.engine import Engine
from gear_rl.environments import TOOL_FAILURES
from gear_rl.rollouts import RolloutBatch
from gear_rl.signals.passes import PassSignal, skipping_first
from gear_rl.signals.signal import BatchSignal
from gear_rl.signals.table import signals_of
from gear_rl.tensor.lists import float_list
from gear_rl.traits import at_step, distillation_of, is_additive, with_state
from gear_rl.types import Credit, CreditAssigner, TokenSignals

logger = logging.getLogger(__name__)


def step(
    batch: RolloutBatch,
    method: CreditAssigner,
    engine: Engine,
    config: CreditConfig,
    *,
    privileged: PrivilegedFunction | None = None,
    teacher_check: TeacherCheck | None = None,
) -> CreditResult:
    """The credit of a batch of rollouts, logged and recorded; every process must call this.

    ``config`` is ``resolved`` for the method. ``privileged`` is the user's function for the source "function".
    ``teacher_check`` is shown every batch.

    A completion keeps its GRPO advantage for each of ``FALLBACKS``. Raises ``ValueError`` for a signal that the
    engine cannot compute, and for a method that gives ``distill_weight`` without a ``distillation``.
    """
    begin = time.perf_counter()
    plan = prepare(batch, method, engine, config, privileged)
    if teacher_check is not None:
        teacher_check(plan, engine)
    result = credit_from(plan, collect(plan, engine), engine)
    report(plan, result, engine, time.perf_counter() - begin)
    return result


def prepare(
    batch: RolloutBatch,
    method: CreditAssigner,
    engine: Engine,
    config: CreditConfig,
    privileged: PrivilegedFunction | None = None,
) -> CreditPlan:
    """The privileged contexts of the rollouts, and the completions to score; every process must call this."""
    method, trained_B = at_step(method, batch.step), batch.completions.mask.any(-1)
    signals = signals_of(method.needs)
    teacher = prompts_for(batch, method, signals, engine, config, privileged)
    missing_B, long_B = teacher.missing_B, teacher.long_B
    fallback_B = {
        "no_context": missing_B & trained_B,
        "long_context": long_B & ~missing_B & trained_B,
        "non_finite": torch.zeros_like(trained_B),
        "no_token": ~trained_B,
    }
    scored_B = trained_B & ~missing_B & ~long_B
    if not signals and distillation_of(method) is None:
        scored_B = torch.zeros_like(scored_B)
    elif not is_additive(method):
        # Where the advantage is 0 no weight changes anything, so nothing is scored.
        scored_B = scored_B & (batch.advantage_B != 0)
    return CreditPlan(
        method=method,
        signals=signals,
        batch=batch,
        teacher=teacher,
        scored_B=scored_B,
        fallback_B=fallback_B,
        config=config,
    )


def credit_from(plan: CreditPlan, signals: TokenSignals, engine: Engine) -> CreditResult:
    """The method's credit where the signals can be trusted, the completion's own advantage elsewhere.

    ``signals`` has all that the method needs.
    """
    method, batch, scored_B = plan.method, plan.batch, plan.scored_B
    advantage_B, mask = batch.advantage_B, batch.completions.mask
    fallback_B, finite_B = dict(plan.fallback_B), finite_rows(signals)
    fallback_B["non_finite"] = scored_B & ~finite_B
    falls_B = torch.stack(list(fallback_B.values())).any(0)
    # The siblings must not be compared with signals that a completion does not have.
    absent_B = (falls_B & ~fallback_B["no_token"]) | ~finite_B
    if any(name in signals for name in ("reward_B", "rewards_BR", "success_B")):
        # Every reward function abstained, which is no reward of 0: engines leave it out of its group too.
        absent_B = absent_B | ~batch.has_reward()
    falls_B = falls_B | absent_B
    base_B = torch.where(falls_B, 0.0, advantage_B) if plan.reads_signals else advantage_B
    alone = batch.num_rollouts  # no group of the batch has this number
    counted = signals.mask & (scored_B & ~falls_B)[:, None]
    method = with_state(method, engine.state, lambda name: mean_over(signals.get(name), counted, engine))
    shown = leave_out_rows(signals, absent_B, alone)
    credit = credit_beside_siblings(method, base_B, shown, engine, batch.first)
    # The method itself may divide by zero.
    finite_B = credit.advantage.isfinite().all(-1)
    if credit.distill_weight is not None:
        finite_B = finite_B & credit.distill_weight.isfinite().all(-1)
    fallback_B["non_finite"] = fallback_B["non_finite"] | ~finite_B
    falls_B = falls_B | fallback_B["non_finite"]
    if plan.reads_signals and not is_additive(method):
        falls_B = falls_B | (advantage_B == 0)  # not scored, so the method's credit is not used
    if falls_B.any():
        credit = credit.falling_back(falls_B, advantage_B, mask)
        signals = clean_rows(signals, ~fallback_B["non_finite"])
    if credit.distill_weight is not None:
        if not plan.teacher.prompts:
            raise ValueError(
                f"credit: {method.name!r} gives distill_weight, but has no `distillation` that says which "
                "term it weighs; see gear_rl.traits.Traits"
            )
        # Nothing is distilled on the first tokens of a turn. Their weight is set to 0 as a divergence is.
        weight = TokenSignals(mask=signals.mask, turn_id=signals.turn_id, divergence=credit.distill_weight)
        skipped = skipping_first(weight, plan.config.teacher_skip_first_tokens)
        credit = replace(credit, distill_weight=skipped.divergence)
    if batch.completions.trained is not None:
        credit = replace(credit, advantage=torch.where(batch.completions.trained, credit.advantage, 0.0))
    return CreditResult(
        credit=credit,
        signals=signals,
        teachers=plan.teacher.prompts,
        scored_B=scored_B,
        fallback_B=fallback_B,
        trusted_B=scored_B & ~falls_B,
    )


def collect(plan: CreditPlan, engine: Engine) -> TokenSignals:
    """The signals that the method needs; a forward pass leaves 0 in rows that are not scored."""
    batch, signals = plan.batch, plan.signals
    plain = [signal for signal in signals if isinstance(signal, BatchSignal)]
    passes = [signal for signal in signals if not isinstance(signal, BatchSignal)]
    read = [own for signal in passes if isinstance(signal, PassSignal) for own in signal.reads]
    run = {name: getattr(plan.config, name) for name in ("success_reward", "answer_pattern")}
    run["contexts"] = tuple(plan.teacher.contexts)
    made = {
        signal.name: signal.with_run(run).compute(batch, engine) for signal in dict.fromkeys([*plain, *read])
    }
    values = {signal.name: made[signal.name] for signal in plain}
    if passes:
        values |= engine.forward(plan.request(passes, {signal.name: made[signal.name] for signal in read}))
    return TokenSignals(mask=batch.completions.mask, values=values)


def report(plan: CreditPlan, result: CreditResult, engine: Engine, seconds: float) -> None:
    """Log the metrics of the batch and pass on its records; every process must call this."""
    batch = plan.batch
    sums, largest = metric_sums(
        result.credit, result.signals, batch.advantage_B, result.scored_B, result.fallback_B
    )
    gathered = engine.gather(torch.stack([*sums.values(), largest])[None])
    totals = dict(zip(sums, float_list(gathered[:, :-1].sum(0)), strict=True))
    metrics = step_metrics(totals, float(gathered[:, -1].max()), seconds)
    if not plan.reads_signals:
        del metrics["gear/scored"]  # nothing was to be
    if metrics["gear/fallback/non_finite"]:
        logger.warning(
            "step %d: %d completions had a NaN or Inf in a signal and kept their GRPO advantage",
            batch.step + 1,
            int(metrics["gear/fallback/non_finite"]),
        )
    if batch.tools is not None:
        tools = engine.gather_objects(list(batch.tools.counts))
        for kind in TOOL_FAILURES:
            metrics[f"gear/tools/{kind}"] = float(sum(counts.get(kind, 0) for counts in tools))
    if plan.teacher.tried:
        # A source of another name is the column of a row.
        found = engine.gather_objects(list(plan.teacher.sources))
        kinds = [name if name is None or name in SOURCES else "row" for name in found]
        metrics |= {f"gear/context/{name}": float(kinds.count(name)) for name in plan.teacher.tried}
    engine.log(metrics | _state_metrics(engine.state))
    if engine.record_sink is not None:
        records = engine.gather_objects(records_of(plan, result, engine.tokenizer))
        if engine.rank == 0:
            engine.record_sink(records)


def for_loss(batch: RolloutBatch, credit: Credit) -> Tensor:
    """The advantage of every token, shape (B, T); the batch's own, shape (B,), if every weight is 1.

    With (B,) GRPO stays GRPO bit for bit: a loss over whole sequences would sum T equal numbers in another order.
    """
    trained = batch.completions.mask if batch.completions.trained is None else batch.completions.trained
    plain = torch.where(trained, batch.advantage_B[:, None], 0.0)
    return batch.advantage_B if torch.equal(credit.advantage, plain) else credit.advantage


def _state_metrics(state: Mapping[str, Any]) -> dict[str, float]:
    """The last number of every list that the method remembers."""
    metrics = dict[str, float]()
    for name, value in state.items():
        if isinstance(value, dict):  # of a method inside a method
            metrics |= _state_metrics(cast(dict[str, Any], value))
        elif isinstance(value, list) and value:
            metrics[f"gear/{name}"] = cast(list[float], value)[-1]
    return metrics
