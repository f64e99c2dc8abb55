"""Saves what a run's policy is updated with, and what its credit was made from, where a test gives a folder.

Replaces nothing: two methods of the trainers run as ever, and what went in or came out is saved.
"""

import functools
import os
from pathlib import Path

FOLDER = "GEAR_VERL_WATCH"
"""The environment variable with the folder."""
GIVEN = (
    *("step", "completions", "student", "prompts", "rows", "messages", "advantage_B"),
    *("rewards", "rewards_BR", "group", "first", "num_rollouts", "environments"),
)
"""Of a batch of rollouts, all that can be saved."""
RESULT = ("signals", "credit", "scored_B")


def watch_updates() -> None:
    """Save, before every update of the policy, what verl's loss reads: `update1.pt`, `update2.pt`, ..."""
    import transfer_queue
    from verl.trainer.ppo.v1.trainer_base import PPOTrainer

    update = PPOTrainer._update_actor
    names = ["responses", "response_mask", "advantages", "rm_scores", "extra_info"]

    @functools.wraps(update)
    def watched(self, batch, *args, **kwargs):
        data = transfer_queue.kv_batch_get(
            keys=batch.keys, partition_id=batch.partition_id, select_fields=names
        )
        columns = {name: [getattr(value, "data", value) for value in _entries(data[name])] for name in names}
        problems = columns.pop("extra_info")
        # Prompts get a random name in every run; the problem's number and the sibling's do not change.
        siblings = [int(key.split("_")[-2]) for key in batch.keys]
        places = [(info["index"], sibling) for info, sibling in zip(problems, siblings, strict=True)]
        _save(f"update{self.global_steps}", {"places": places, **columns})
        return update(self, batch, *args, **kwargs)

    PPOTrainer._update_actor = watched


def watch_credit() -> None:
    """Save what every credit step was given and what it returned: `credit1.pt`, `credit2.pt`, ..."""
    from gear_rl.runs.verl.credit_trainer import CreditTrainer

    assign = CreditTrainer.assign_credit

    @functools.wraps(assign)
    def watched(self, *given):
        rollouts, result = assign(self, *given)
        parts = {name: getattr(rollouts, name) for name in GIVEN}
        _save(f"credit{self.global_steps}", {"batch": parts, **{k: getattr(result, k) for k in RESULT}})
        return rollouts, result

    CreditTrainer.assign_credit = watched


def _entries(values):
    return values.unbind() if hasattr(values, "unbind") else values


def _save(name: str, content: dict) -> None:
    import torch

    torch.save(content, Path(os.environ[FOLDER]) / f"{name}.pt")
