"""``gear score``: where methods put their credit on completions with a planted fault; nothing is trained."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false

import tempfile
from collections.abc import Callable, Mapping
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from gear_rl.arena.faults import Case, Reference, cases
from gear_rl.arena.ledger_episodes import Fault
from gear_rl.cli.arena_runs import PUBLISHED, REWARDS, arena_config, task_of
from gear_rl.cli.config import build_method
from gear_rl.cli.doctor import versions
from gear_rl.cli.errors import InputError
from gear_rl.cli.train import make_trainer, use_few_threads
from gear_rl.engines.trl_replay import replay
from gear_rl.lab.localisation import Localisation, Role, localisation, locate, onsets_of
from gear_rl.lab.report import Places
from gear_rl.view.records import Record

FLOORS = ("uniform", "shuffled", "random_onsets")
"""What a method has to beat; always measured beside the others."""
UNINFORMED = "gear_uninformed"
"""GEAR with a teacher that is told the solution of another problem."""
SIGNALS = {"entropy": "student_entropy", "log_ratio": "log_ratio", "divergence": "divergence"}
"""Signals by themselves, beside the methods that are made from them."""


def score(
    methods: Mapping[str, dict[str, Any]],
    *,
    task: str = "chain",
    tier: str = "default",
    n: int = 256,
    fault: Fault = "relation",
    console: Console,
) -> tuple[dict[str, Any], list[Localisation]]:
    """How well each method's credit finds the planted faults of held-out problems; as JSON-ready numbers.

    Every problem is a group of two: the completion with the fault, and the right one. They go through the
    engine as if they had just been sampled, with the method's published engine settings. Measured is the absolute
    credit of the tokens of the faulty completion. Floors, controls and the ceiling are always there. ``methods``
    are the names to show and the settings; the localisations come beside the numbers.
    """
    task_of(task, tier)
    if not 1 <= n <= 1024:
        raise InputError(f"--n: {n} is not possible; there are 1024 held-out problems")
    named = {name: {"name": name} for name in ("gear", "rlsd", *FLOORS)} | dict(methods)
    for credit in named.values():
        build_method(credit)
    threads = use_few_threads()
    found: list[Localisation] = []
    with Progress(console=console, disable=not console.is_terminal, transient=True) as bar:
        work = bar.add_task("scoring", total=(len(named) + 1) * n)

        def replayed(name: str, shown: Reference) -> tuple[list[Case], list[Record]]:
            bar.update(work, description=f"scoring {name}")

            def advance(rows: int) -> None:
                bar.advance(work, rows / 2)

            return records_of(named[name], task, tier, n, fault=fault, shown=shown, advance=advance)

        kept: dict[str, tuple[list[Case], list[Record]]] = {}
        for name in named:
            kept[name] = replayed(name, "trace")
            if name in methods or name in FLOORS:
                found.append(_found(name, *kept[name], role="floor" if name in FLOORS else "method"))
        found.append(_found(UNINFORMED, *replayed("gear", "shuffled"), role="control"))
    for name, signal in SIGNALS.items():
        source = kept["rlsd" if signal == "log_ratio" else "gear"]
        found.append(_found(name, *source, role="control", signal=signal))
    found.append(_found("oracle", *kept["uniform"], role="ceiling"))
    document = {
        "what": "absolute credit on completions with one planted fault; the fault is the first wrong token",
        "task": task,
        "tier": tier,
        "fault": fault if task == "ledger" else "result",
        "n": n,
        "threads": threads,
        "methods": {one.name: _as_dict(one) for one in found},
        "versions": versions(),
    }
    return document, found


def places_of(found: dict[str, Any], rows: list[Localisation]) -> Places:
    """The same for the laboratory's report."""
    words = {"result": "a wrong result", "relation": "a wrong tool", "argument": "payer and payee mixed up"}
    return Places(task=found["task"], tier=found["tier"], fault=words[found["fault"]], rows=rows)


def records_of(
    credit: dict[str, Any],
    task: str,
    tier: str,
    n: int,
    *,
    fault: Fault = "relation",
    shown: Reference = "trace",
    advance: Callable[[int], None] | None = None,
) -> tuple[list[Case], list[Record]]:
    """The planted faults and, for each, the engine's record of the faulty completion under a method."""
    with tempfile.TemporaryDirectory(prefix="gear-score-") as folder:
        name = str(credit["name"])
        own: dict[str, Any] = PUBLISHED.get(name, {}) | {
            "num_generations": 2,
            "scale_rewards": "group",
            "record_max_mb": 4096,
        }
        trainer = make_trainer(
            arena_config(
                task,
                tier,
                credit,
                seed=0,
                steps=1,
                output_dir=folder,
                reward=REWARDS.get(name) if task == "chain" else None,
                **own,
            )
        )
        try:
            chosen = cases(trainer.processing_class, task, tier, n, reference=shown, fault=fault)
        except ValueError as error:
            raise InputError(f"--{error}") from None
        rows = [case.row for case in chosen for _ in range(2)]
        turns = [turns for case in chosen for turns in (case.faulty, case.right)]
        records = replay(
            trainer, rows, turns, batch=2 * (trainer.args.per_device_train_batch_size // 2), advance=advance
        )
    return chosen, records[::2]


def _found(
    name: str, chosen: list[Case], records: list[Record], *, role: Role, signal: str | None = None
) -> Localisation:
    """``signal`` is looked at instead of the credit; the ceiling puts all on the fault."""
    width = max(len(record.ids) for record in records)

    def padded(rows: list[list[Any]], value: Any) -> torch.Tensor:
        return torch.tensor([row + [value] * (width - len(row)) for row in rows])

    mask = padded([[bool(kept) for kept in record.mask] for record in records], False)
    fault = padded(
        [[t in case.fault for t in range(len(r.ids))] for case, r in zip(chosen, records, strict=True)], False
    )
    segment = padded([record.segment for record in records], -1)
    if role == "ceiling":
        values = fault.float()
    elif signal is None:
        values = padded([[abs(value) for value in record.credit] for record in records], 0.0)
    else:
        values = padded([_signal(record, signal) for record in records], 0.0)
    onset = onsets_of(segment) if signal is None and role != "ceiling" else None
    return localisation(name, locate(values, fault, mask, onset), role)


def _signal(record: Record, name: str) -> list[float]:
    if not record.signals:
        return [0.0] * len(record.ids)
    if name != "log_ratio":
        return record.signals[name]
    pairs = zip(record.signals["student_logprob"], record.signals["teacher_logprob"], strict=True)
    return [own - told for own, told in pairs]  # the teacher thinks little of a wrong token


def _as_dict(one: Localisation) -> dict[str, Any]:
    row: dict[str, Any] = {"role": one.role, "n": one.n, "left_out": one.left_out}
    for name in ("auc", "share", "lift", "rank", "distance"):
        mean, interval, count = getattr(one, name)
        row[name] = None if mean is None else round(mean, 4)
        row[f"{name}_interval"] = None if interval is None else [round(end, 4) for end in interval]
        if name == "distance":
            row["with_onset"] = count
    return row


def score_table(found: dict[str, Any]) -> Table:
    """The numbers, for the terminal: what they are compared with below the methods."""
    table = Table(title=f"{found['task']}/{found['tier']}: {found['n']} planted faults")
    for column in ("", "AUC", "95 %", "share on the fault", "lift", "rank", "nearest onset"):
        table.add_column(column, justify="left" if column in ("", "95 %") else "right")
    last = None
    for name, row in sorted(found["methods"].items(), key=lambda item: _ORDER.index(item[1]["role"])):
        if last is not None and row["role"] != last:
            table.add_section()
        last = row["role"]
        low, high = row["auc_interval"] or (float("nan"), float("nan"))
        far = "-" if row["distance"] is None else f"{row['distance']:.1f}"
        role = "" if row["role"] == "method" else f" ({row['role']})"
        table.add_row(
            f"{name}{role}",
            f"{row['auc']:.3f}",
            f"{low:.3f} to {high:.3f}",
            f"{row['share']:.3f}",
            f"{row['lift']:.1f}",
            f"{row['rank']:.1f}",
            far,
        )
    return table


_ORDER = ["method", "floor", "control", "ceiling"]
