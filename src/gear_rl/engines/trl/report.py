"""What the TRL engine tells of a credit pass: metrics in the trainer's log, records in a file."""

# TRL and transformers are only partly typed; what crosses this seam is checked by the tests instead.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportPrivateUsage=false

import logging
from typing import Any, cast

import torch
from accelerate.utils import gather_object
from torch import Tensor

from gear_rl.credit.metrics import finished, measured
from gear_rl.credit.records import records_of
from gear_rl.records import RecordWriter
from gear_rl.types import ROW_SIGNALS, Credit, TokenSignals

logger = logging.getLogger(__name__)


def log_credit(
    trainer: Any,
    credit: Credit,
    signals: TokenSignals,
    advantage_B: Tensor,
    scored_B: Tensor,
    fallback_B: dict[str, Tensor],
    seconds: float,
) -> None:
    """The ``gear/*`` metrics of a batch, over all processes."""
    accelerator = trainer.accelerator
    sums, largest = measured(credit, signals, advantage_B, scored_B, fallback_B)
    total = cast(Tensor, accelerator.reduce(torch.stack(list(sums.values())), reduction="sum"))
    largest = cast(Tensor, accelerator.gather(largest)).max()
    metrics = finished(dict(zip(sums, total.tolist(), strict=True)), largest.item(), seconds)
    for name, value in metrics.items():
        trainer._metrics["train"][name].append(value)
    if metrics["gear/fallback/non_finite"]:
        logger.warning(
            "step %d: %d completions had a NaN or Inf in a signal and kept their GRPO advantage",
            trainer.state.global_step,
            int(metrics["gear/fallback/non_finite"]),
        )


def record(
    trainer: Any,
    output: dict[str, Any],
    credit: Credit,
    signals: TokenSignals,
    scored_B: Tensor,
    fallback_B: dict[str, Tensor],
    tools: list[dict[str, int]],
    sources: list[str | None],
) -> None:
    """The records of a batch into the trainer's record file, by the main process."""
    tokenizer: Any = trainer._tokenizer
    first = trainer.accelerator.process_index * len(scored_B)
    prompts = zip(output["prompt_ids"], output["prompt_mask"].bool(), strict=True)
    local = records_of(
        step=trainer.state.global_step,
        method=trainer.credit.name,
        group=[(first + b) // trainer.num_generations for b in range(len(scored_B))],
        prompt=[tokenizer.decode(ids[kept]) for ids, kept in prompts],
        reward=trainer._batch_rewards[first : first + len(scored_B)],
        advantage_B=output["advantages"],
        ids=output["completion_ids"],
        attention=output["completion_mask"].bool() | signals.mask,
        credit=credit,
        signals=signals,
        seen=[
            name
            for name in trainer.credit.needs
            # A record has the ids of its tokens already.
            if name not in (*ROW_SIGNALS, "token_id") and getattr(signals, name) is not None
        ],
        scored_B=scored_B,
        fallback_B=fallback_B,
        tools=tools,
        context=sources,
        truncated=[not ids or ids[-1] not in trainer.eos_token_ids for ids in trainer._rollout_ids],
        decode=lambda token: tokenizer.decode([token]),
    )
    everywhere = gather_object(local)
    if trainer.accelerator.is_main_process:
        if trainer._records is None:
            size = int(trainer.args.record_max_mb * 1024 * 1024)
            trainer._records = RecordWriter(
                trainer.args.record_file or "", size, resume_step=trainer.state.global_step
            )
        trainer._records.write(everywhere)
