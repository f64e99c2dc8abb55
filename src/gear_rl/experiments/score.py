"""``gear score``: where methods put their credit on completions with a known fault; nothing is trained.

The completions are the arena's, with a planted fault, or the user's (`gear_rl.experiments.marked`).
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false

import gc
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table

from gear_rl.arena.faults import Case, cases
from gear_rl.arena.ledger.episodes import Fault
from gear_rl.engines.trl.replay import replay
from gear_rl.errors import InputError
from gear_rl.lab.localisation import Found, Localisation, Role, localisation, locate, onsets_of
from gear_rl.lab.report import Places
from gear_rl.records import Record
from gear_rl.runs.arena import arena_config, rewards_for, task_of
from gear_rl.runs.config import RunConfig, build_method
from gear_rl.runs.trainer import make_trainer
from gear_rl.runs.versions import versions

FLOORS = ("uniform", "shuffled", "random_onsets")
"""What a method has to beat; always measured beside the others."""
UNINFORMED = "gear_uninformed"
"""GEAR with a teacher that is told the solution of another problem."""
ENTROPY_ONSETS = "entropy_onsets"
"""GEAR whose onsets are sought in the student's entropy alone."""
SIGNALS = {"entropy": "student_entropy", "log_ratio": "log_ratio", "divergence": "divergence"}
"""Signals by themselves, beside the methods that are made from them."""
REPLAY: dict[str, Any] = {"num_generations": 2, "scale_rewards": "group", "record_max_mb": 4096}
"""Settings of every replay: a group is the faulty completion and another one."""

LARGE = 50_000_000
"""Weights from which a model is cleared away before the next is loaded; that takes half a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Material:
    """Completions with a known fault, and the run that they go through."""

    n: int
    """Problems, at most."""
    config: Callable[[dict[str, Any], str], RunConfig]
    """The run of a method in a folder."""
    cases: Callable[[Any, bool], list[Case]]
    """What is scored with a trainer; with False its teacher is told of other problems."""
    about: Callable[[], dict[str, Any]]
    """What the document says of them, once they were scored; ``n`` is how many."""
    marks: tuple[dict[str, Any], dict[str, Any]] = field(default_factory=lambda: ({}, {}))
    """Further columns of the faulty completion's row, and of the other one's."""


def arena_material(
    task: str = "chain", tier: str = "default", n: int = 256, fault: Fault = "relation"
) -> Material:
    """Held-out problems of the arena, each with the right completion beside the one with the planted fault."""
    task_of(task, tier)
    if not 1 <= n <= 1024:
        raise InputError(f"--n: {n} is not possible; there are 1024 held-out problems")

    def config(credit: dict[str, Any], folder: str) -> RunConfig:
        reward = rewards_for(credit, task)
        return arena_config(task, tier, credit, seed=0, steps=1, output_dir=folder, reward=reward, **REPLAY)

    def chosen(trainer: Any, informed: bool) -> list[Case]:
        shown = "trace" if informed else "shuffled"
        try:
            return cases(trainer.processing_class, task, tier, n, reference=shown, fault=fault)
        except ValueError as error:
            raise InputError(f"--{error}") from None

    about: dict[str, Any] = {
        "what": "absolute credit on completions with one planted fault; the fault is the first wrong token",
        "task": task,
        "tier": tier,
        "fault": fault if task == "ledger" else "result",
        "n": n,
    }
    return Material(n=n, config=config, cases=chosen, about=lambda: about)


def score(
    methods: Mapping[str, dict[str, Any]], material: Material, *, console: Console
) -> tuple[dict[str, Any], list[Localisation]]:
    """How well each method's credit finds the faults of the material; as JSON-ready numbers.

    Every problem is a group of two: the completion with the fault, and another one with a larger reward. They go
    through the engine as if they had just been sampled, with the method's published engine settings. Measured is
    the absolute credit of the tokens of the faulty completion. Floors, controls and the ceiling are always there.
    ``methods`` are the names to show and the settings; the localisations come beside the numbers.
    """
    named = {name: {"name": name} for name in ("gear", "rlsd", *FLOORS)} | dict(methods)
    for credit in named.values():
        build_method(credit)
    found: list[Localisation] = []
    with Progress(console=console, disable=not console.is_terminal, transient=True) as bar:
        work = bar.add_task("scoring", total=(len(named) + 2) * material.n)

        def replayed(
            name: str, credit: dict[str, Any], informed: bool = True
        ) -> tuple[list[Case], list[Record]]:
            bar.update(work, description=f"scoring {name}")
            return records_of(
                credit, material, informed=informed, advance=lambda rows: bar.advance(work, rows / 2)
            )

        kept: dict[str, tuple[list[Case], list[Record]]] = {}
        for name, credit in named.items():
            kept[name] = replayed(name, credit)
            if name in methods or name in FLOORS:
                found.append(_found(name, *kept[name], role="floor" if name in FLOORS else "method"))
        gear = {"name": "gear"}
        found.append(_found(UNINFORMED, *replayed(UNINFORMED, gear, informed=False), role="control"))
        gear["onset_signal"] = "entropy"
        found.append(_found(ENTROPY_ONSETS, *replayed(ENTROPY_ONSETS, gear), role="control"))
    for name, signal in SIGNALS.items():
        source = kept["rlsd" if signal == "log_ratio" else "gear"]
        found.append(_found(name, *source, role="control", signal=signal))
    found.append(_found("oracle", *kept["uniform"], role="ceiling"))
    document = {
        **material.about(),
        "threads": torch.get_num_threads(),
        "methods": {one.name: _as_dict(one) for one in found},
        "versions": versions(),
    }
    return document, found


def places_of(found: dict[str, Any], rows: list[Localisation]) -> Places:
    """The same for the laboratory's report."""
    if "data" in found:
        return Places(task=found["data"], tier=found["model"], fault="a span that was marked", rows=rows)
    words = {"result": "a wrong result", "relation": "a wrong tool", "argument": "payer and payee mixed up"}
    return Places(task=found["task"], tier=found["tier"], fault=words[found["fault"]], rows=rows)


def title_of(found: dict[str, Any]) -> str:
    """What was scored, in few words."""
    return f"{found['data']}, {found['model']}" if "data" in found else f"{found['task']}/{found['tier']}"


def records_of(
    credit: dict[str, Any],
    material: Material,
    *,
    informed: bool = True,
    advance: Callable[[int], None] | None = None,
) -> tuple[list[Case], list[Record]]:
    """The cases and, for each, the engine's record of the faulty completion under a method."""
    with tempfile.TemporaryDirectory(prefix="gear-score-") as folder:
        trainer = make_trainer(material.config(credit, folder))
        chosen = material.cases(trainer, informed)
        rows = [case.row | mark for case in chosen for mark in material.marks]
        turns = [turns for case in chosen for turns in (case.faulty, case.right)]
        batch = 2 * (trainer.args.per_device_train_batch_size // 2)
        try:
            records = replay(trainer, rows, turns, batch=batch, advance=advance)
        except ValueError as error:  # a method may ask for what one reward function or one turn has not
            raise InputError(f"--methods: {credit['name']}: {error}") from None
        large = sum(weights.numel() for weights in trainer.model.parameters()) >= LARGE
    del trainer
    if large:
        gc.collect()  # trainer and callbacks hold each other: the next model would stand beside this one
    return chosen, records[::2]


def _found(
    name: str, chosen: list[Case], records: list[Record], *, role: Role, signal: str | None = None
) -> Localisation:
    """``signal`` is looked at instead of the credit; the ceiling puts all on the fault."""
    width = max((len(record.ids) for record in records), default=0)

    def padded(rows: list[list[Any]], value: Any) -> torch.Tensor:
        whole = torch.tensor([row + [value] * (width - len(row)) for row in rows])
        return whole.to(torch.tensor(value).dtype).reshape(len(rows), width)

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
    places: list[Found | str] = [*locate(values, fault, mask, onset)]
    if role != "ceiling":
        # It kept its GRPO advantage, which says nothing of the method.
        places = ["fallback" if r.fallback else one for one, r in zip(places, records, strict=True)]
    return localisation(name, places, role)


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
    kind = "marked" if "data" in found else "planted"
    table = Table(title=f"{escape(title_of(found))}: {found['n']} {kind} faults")
    columns = ["", "AUC", "95 %", "share on the fault", "lift", "rank", "nearest onset"]
    if any(row["n"] < found["n"] for row in found["methods"].values()):
        columns.append("n")  # some say nothing of a method
    for column in columns:
        table.add_column(column, justify="left" if column in ("", "95 %") else "right")
    last = None
    for name, row in sorted(found["methods"].items(), key=lambda item: _ORDER.index(item[1]["role"])):
        if last is not None and row["role"] != last:
            table.add_section()
        last = row["role"]
        role = "" if row["role"] == "method" else f" ({row['role']})"
        span = row["auc_interval"]
        cells = [
            f"{escape(name)}{role}",
            _number(row["auc"], 3),
            "-" if span is None else " to ".join(_number(end, 3) for end in span),
            _number(row["share"], 3),
            *(_number(row[key], 1) for key in ("lift", "rank", "distance")),
            str(row["n"]),
        ]
        table.add_row(*cells[: len(columns)])
    return table


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


_ORDER = ["method", "floor", "control", "ceiling"]
