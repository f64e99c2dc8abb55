"""``gear arena``: make the arena's models again, and measure what they promise."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false

import copy
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from gear_rl.runs.machine import machine_defaults

REFERENCES = ("trace", "answer", "shuffled")
"""What a prompt may hold besides the problem when a model is measured with a reference."""


def ledger_trainer(model: Any, tokenizer: Any, tier: str, folder: str) -> Any:
    """A trainer that only solves: TRL's tool loop around the model, in the environment of the tier."""
    import datasets

    from gear_rl.arena.ledger.env import environment
    from gear_rl.arena.ledger.problem import rows
    from gear_rl.arena.model import CHAT_TEMPLATE_KWARGS
    from gear_rl.arena.tiers import LEDGER_DEMOS
    from gear_rl.engines.trl import GEARTrainer
    from gear_rl.engines.trl.config import GEARConfig
    from gear_rl.methods import Uniform

    budget = LEDGER_DEMOS[tier]
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
    return GEARTrainer(
        model,
        None,
        args,
        datasets.Dataset.from_list(rows(tier, num=8)),
        processing_class=tokenizer,
        environment_factory=environment(tier),
        credit=Uniform(),
    )


def success(trainer: Any, rows: Sequence[dict[str, Any]], greedy: bool = False) -> float:
    """The share of the rows that are solved, one rollout each."""
    return sum(reward or 0.0 for reward in trainer.solve(rows, greedy=greedy, seed=0)) / len(rows)


def build(folder: Path, task: str, seed: int, recipe: Any = None) -> None:
    """Train the task's checkpoint from nothing into ``folder``; without a ``recipe`` by the task's own."""
    from gear_rl.arena.chain.recipe import build as run
    from gear_rl.arena.ledger.problem import rows
    from gear_rl.arena.model import parse_tool_calls

    if task == "chain":
        run(folder, seed, task=task, recipe=recipe)
        return

    def measure(model: Any, tokenizer: Any) -> float:
        # Copies: TRL changes the model's forward and the tokenizer; what is being built must stay as it is.
        model, tokenizer = copy.deepcopy(model), copy.deepcopy(tokenizer)
        parse_tool_calls(tokenizer)
        with tempfile.TemporaryDirectory(prefix="gear-arena-") as scratch:
            return success(
                ledger_trainer(model, tokenizer, "default", scratch), rows("default", num=128, first_seed=0)
            )

    run(folder, seed, task=task, measure=measure, recipe=recipe)


def check_ledger(
    model: Any, tokenizer: Any, n: int, num_faults: int, tiers: Sequence[str], console: Console
) -> dict[str, Any]:
    """Success with and without a reference, and whether GEAR's onsets find the turn of a planted fault."""
    from gear_rl.arena.ledger import problem as ledger
    from gear_rl.arena.ledger.check import localisation
    from gear_rl.methods import Gear
    from gear_rl.signals.privileged import render

    facts: dict[str, Any] = {}
    for tier in tiers:
        problems = [ledger.generate(seed, tier) for seed in range(n)]
        alone = ledger.rows(tier, num=n, reference="none", first_seed=0)
        with tempfile.TemporaryDirectory(prefix="gear-arena-") as scratch:
            trainer = ledger_trainer(model, tokenizer, tier, scratch)
            with console.status(f"ledger ({tier}): {n} held-out problems, alone and with references ..."):
                found: dict[str, Any] = {
                    "n": n,
                    "fingerprint": ledger.fingerprint(tier, n)[:16],
                    "sampled": success(trainer, alone),
                    "greedy": success(trainer, alone, greedy=True),
                }
                for reference in REFERENCES:
                    told = [
                        {**row, "prompt": render(row["prompt"], context or "", ledger.TEMPLATE)}
                        for i, (row, problem) in enumerate(zip(alone, problems, strict=True))
                        for context in [ledger.privileged_context(problem, reference, i)]
                    ]
                    found[f"sampled_{reference}"] = success(trainer, told)
        with console.status(f"ledger ({tier}): {num_faults} planted faults of each kind ..."):
            found["planted"] = localisation(model, tokenizer, tier, n=num_faults, onset_of=Gear().onsets)
        facts[tier] = found
    return facts


def ledger_tables(facts: dict[str, Any]) -> list[Table]:
    """The numbers of ``check_ledger`` for a person."""
    n = next(iter(facts.values()))["n"]
    success_table = Table(
        title=f"ledger: share of {n} held-out problems that are solved; the last three with a reference"
    )
    columns = ("sampled", "greedy", *(f"sampled_{reference}" for reference in REFERENCES))
    for column in ("tier", "alone", "greedy", *REFERENCES):
        success_table.add_column(column)
    places = Table(
        title="ledger: how often the turn of a planted wrong call is found",
        caption="onset: GEAR's onset of largest divergence; blind: the same when the teacher is told of another "
        "problem; then the token where a signal is largest: log-ratio of the sampled token, student entropy",
    )
    for column in ("tier", "fault", "faults", "chance", "onset", "blind", "log-ratio", "entropy"):
        places.add_column(column)
    for tier, found in facts.items():
        success_table.add_row(tier, *(f"{found[column]:.3f}" for column in columns))
        for kind, values in found["planted"].items():
            numbers = (values[name] for name in ("chance", "onset", "shuffled_onset", "log_ratio", "entropy"))
            places.add_row(tier, kind, str(values["n"]), *(f"{number:.3f}" for number in numbers))
    return [success_table, places]


def chain_tables(facts: dict[str, Any]) -> list[Table]:
    """The numbers of ``gear_rl.arena.chain.check.check`` for a person."""
    from gear_rl.arena.chain.check import SIGNALS

    n = next(iter(facts.values()))["n"]
    accuracies = Table(
        title=f"chain: share of {n} held-out problems solved at temperature 1; the last three with a reference"
    )
    columns = ("sampled", "greedy", "sampled_trace", "sampled_answer", "sampled_shuffled")
    for column in ("tier", "alone", "greedy", "trace", "answer only", "shuffled"):
        accuracies.add_column(column)
    ranks = Table(title="chain: AUC of the first wrong token against the tokens before it; 0.5 is chance")
    for column in ("tier", "errors", "n", *SIGNALS):
        ranks.add_column(column.replace("_", " "))
    for tier, found in facts.items():
        accuracies.add_row(tier, *(f"{found[column]:.3f}" for column in columns))
        for kind in ("on_policy", "planted"):
            values = (f"{found[kind][signal]:.3f}" for signal in SIGNALS)
            ranks.add_row(tier, kind.replace("_", " "), str(found[kind]["n"]), *values)
    return [accuracies, ranks]
