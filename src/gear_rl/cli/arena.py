"""``gear arena``: make the arena's models again, and measure what they promise."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false

import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from gear_rl.arena.task import FactTable, Instruments, Task
from gear_rl.runs.machine import machine_defaults


@contextmanager
def solver(task: Task, model: Any, tokenizer: Any, tier: str) -> Generator[Any]:
    """A trainer that only solves: TRL's tool loop around the model, in the environment of the tier."""
    import datasets

    from gear_rl.arena.model import CHAT_TEMPLATE_KWARGS
    from gear_rl.engines.trl import GEARTrainer
    from gear_rl.engines.trl.config import GEARConfig
    from gear_rl.methods import Uniform

    budget = task.budgets[tier]
    with tempfile.TemporaryDirectory(prefix="gear-arena-") as folder:
        args = GEARConfig(
            output_dir=folder,
            per_device_train_batch_size=8,
            per_device_eval_batch_size=128,
            gradient_accumulation_steps=1,
            num_generations=8,
            max_completion_length=budget.max_completion_tokens,
            max_tool_calling_iterations=budget.max_tool_calls,
            chat_template_kwargs=CHAT_TEMPLATE_KWARGS,
            report_to="none",
            disable_tqdm=True,
            **machine_defaults(),
        )
        yield GEARTrainer(
            model,
            task.reward,
            args,
            datasets.Dataset.from_list(task.rows(tier, num=8)),
            processing_class=tokenizer,
            environment_factory=task.environment(tier),
            credit=Uniform(),
        )


def build(folder: Path, task: Task, seed: int, recipe: Any = None) -> None:
    """Train the task's checkpoint from nothing into ``folder``; without a ``recipe`` by the task's own."""
    task.build(
        folder,
        seed,
        recipe=recipe,
        trainer_of=lambda model, tokenizer, tier: solver(task, model, tokenizer, tier),
    )


def check(
    task: Task, model: Any, tokenizer: Any, *, n: int, num_faults: int, tiers: Sequence[str], console: Console
) -> dict[str, Any]:
    """What the task measures of a checkpoint, by tier. Raises ValueError where too few problems take a fault."""
    instruments = Instruments(
        trainer_of=lambda model, tokenizer, tier: solver(task, model, tokenizer, tier),
        status=console.status,
    )
    return task.check(model, tokenizer, n=n, num_faults=num_faults, tiers=tiers, instruments=instruments)


def table_of(facts: FactTable) -> Table:
    """Measured facts, for the terminal.

    >>> table_of(FactTable(title="chain", columns=("tier", "alone"), rows=[("easy", "0.500")])).row_count
    1
    """
    table = Table(title=facts.title)
    for column in facts.columns:
        table.add_column(column)
    for row in facts.rows:
        table.add_row(*row)
    return table
