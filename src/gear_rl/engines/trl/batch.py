"""A batch of TRL's rollouts as the credit step reads it."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from gear_rl.credit.batch import RolloutBatch
from gear_rl.engines.trl.trainer_type import Trainer
from gear_rl.signals.score import Completions, Prompts
from gear_rl.tensor.segments import turn_ids


def rollout_batch(trainer: Trainer, inputs: list[dict[str, Any]], output: Mapping[str, Any]) -> RolloutBatch:
    """The rollouts of this process, from what ``_generate_and_score_completions`` took and returns."""
    rollouts, rows = trainer.rollouts, len(inputs)
    first = trainer.accelerator.process_index * rows
    own = slice(first, first + rows)
    attention: Tensor = output["completion_mask"]
    mask = (attention * output["tool_mask"] if "tool_mask" in output else attention).bool()
    completions = Completions(ids=output["completion_ids"], attention=attention, mask=mask)
    tools = _tool_names(trainer, rows)
    return RolloutBatch(
        step=trainer.state.global_step,
        completions=completions,
        student=Prompts(ids_BP=output["prompt_ids"], attention_BP=output["prompt_mask"]),
        prompts=rollouts.prompts,
        rows=inputs,
        messages=rollouts.messages,
        advantage_B=output["advantages"],
        rewards=rollouts.rewards[own],
        rewards_BR=rollouts.rewards_each[own].to(mask.device),
        group=[(first + b) // trainer.num_generations for b in range(rows)],
        first=first,
        num_rollouts=len(rollouts.rewards),
        environments=getattr(trainer, "environments", None) or None,
        feedback=rollouts.logged.get("feedback"),
        turn_rewards=rollouts.logged.get("turn_rewards"),
        call_failed=lambda b, message: trainer.tool_guard.failure_of(message, tools[b]) is not None,
        tool_counts=_tool_counts(trainer, completions, tools) if trainer.tools else None,
        truncated=[not ids or ids[-1] not in trainer.eos_token_ids for ids in rollouts.ids],
    )


def _tool_names(trainer: Trainer, count: int) -> list[list[str]]:
    """The names of the tools that each rollout could call."""
    if not trainer.tools:
        return [[] for _ in range(count)]
    pairs = zip(trainer._sync_tool_dicts, trainer._async_tool_dicts, strict=True)
    return [sorted({*sync, *anew}) for sync, anew in pairs]


def _tool_counts(trainer: Trainer, completions: Completions, tools: list[list[str]]) -> list[dict[str, int]]:
    """For each rollout how many calls it made and how many failed of which kind."""
    tokenizer: Any = trainer._tokenizer
    last = [
        tokenizer.decode(ids[(turn == turn.max()) & (turn >= 0)])
        for ids, turn in zip(completions.ids, turn_ids(completions.mask), strict=True)
    ]
    return [
        trainer.tool_guard.report(messages, text, names, trainer.control_tokens)
        for messages, text, names in zip(trainer.rollouts.messages, last, tools, strict=True)
    ]
