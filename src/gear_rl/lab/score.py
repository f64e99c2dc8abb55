"""Where methods put their credit on completions with a known fault; nothing is trained.

The completions are the arena's, with a planted fault, or the user's (`gear_rl.lab.marked`).
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false

import gc
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from gear_rl.arena.task import DEFAULT_TASK, DEFAULT_TIER, Case
from gear_rl.errors import InputError
from gear_rl.lab.localisation import Located, Role, localisation, locate, onsets_of
from gear_rl.lab.replay import PassesOf, replay
from gear_rl.lab.statistics import LEVEL
from gear_rl.records import Record
from gear_rl.runs.arena import arena_config, task_of
from gear_rl.runs.config import RunConfig, build_method
from gear_rl.runs.trainer import make_trainer
from gear_rl.signals.batch import ForwardRequest
from gear_rl.signals.passes import ModelPasses
from gear_rl.signals.signal import FoldSignal, names_of, signals_of
from gear_rl.signals.table import SIGNALS as SIGNALS_BY_NAME
from gear_rl.types import Signal
from gear_rl.versions import versions

_FLOORS = ("uniform", "shuffled", "random_onsets")
"""Placebos that a method has to beat; always measured beside the others."""
UNINFORMED = "gear_uninformed"
"""GEAR with a teacher that sees the solution of another problem."""
ENTROPY_ONSETS = "entropy_onsets"
"""GEAR whose onsets are sought in the student's entropy alone."""
SIGNALS = {
    "surprise": "student_logprob",
    "entropy": "student_entropy",
    "log_ratio": "log_ratio",
    "divergence": "divergence",
}
"""Signals by themselves, beside the methods that are made from them; ``surprise`` is the student's -log p."""
REPLAY: dict[str, Any] = {
    "num_generations": 2,
    "scale_rewards": "group",
    "record_max_mb": 4096,
    "teacher_check_steps": 0,
}
"""Settings of every replay: a group is the faulty completion and another one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Material:
    """Completions with a known fault, and the run that they go through."""

    n: int
    """Problems, at most."""
    config: Callable[[dict[str, Any], str], RunConfig]
    """The run of a method in a folder."""
    cases: Callable[[Any, bool], list[Case]]
    """The cases for a trainer; with False its teacher sees the solutions of other problems."""
    about: Callable[[], dict[str, Any]]
    """The document's own keys, once the cases are scored; ``n`` is their number."""
    marks: tuple[dict[str, Any], dict[str, Any]] = ({}, {})
    """Further columns of the faulty completion's row, and of the other one's."""


def arena_material(task: str = DEFAULT_TASK, tier: str = DEFAULT_TIER, n: int = 256) -> Material:
    """Held-out problems of the arena, each with a right completion and one with a planted fault.

    ``InputError`` for an unknown task or tier, and for another number than 1 to 1024.

    >>> arena_material("errands", "easy", n=8).about()["fault"]
    'code'
    """
    of = task_of(task, tier)
    if not 1 <= n <= 1024:
        raise InputError(f"--n: {n} is not possible; there are 1024 held-out problems")
    about: dict[str, Any] = {
        "what": "absolute credit on completions with one planted fault; the fault is the first wrong token",
        "task": of.name,
        "tier": tier,
        "fault": of.fault,
        "n": n,
    }

    def config(credit: dict[str, Any], folder: str) -> RunConfig:
        return arena_config(of.name, tier, credit, seed=0, steps=1, output_dir=folder, **REPLAY)

    def cases(trainer: Any, informed: bool) -> list[Case]:
        shown = "trace" if informed else "shuffled"
        return of.cases(trainer.processing_class, tier, n, reference=shown)

    return Material(n=n, config=config, cases=cases, about=lambda: about)


def score(
    methods: Mapping[str, dict[str, Any]],
    material: Material,
    *,
    progress: Callable[[str, float, int], None] = lambda name, done, total: None,
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """How well each method's credit finds the faults: the document for JSON, and the localisations for a report.

    ``methods`` are names to show with their settings; floors, controls and the ceiling are always added. Every
    problem is a group of two: the completion with the fault, and one with a larger reward. They go through the
    engine as if sampled just now, with the method's engine settings. Measured is the absolute credit of
    the faulty completion's tokens. ``progress`` gets a method, and how many problems are done, and of how many.
    """
    named = {name: {"name": name} for name in ("gear", "rlsd", *_FLOORS)} | dict(methods)
    passes = remembered(name for credit in named.values() for name in names_of(build_method(credit).needs))
    done, total = 0.0, (len(named) + 2) * material.n

    def run(name: str, credit: dict[str, Any], informed: bool = True) -> tuple[list[Case], list[Record]]:
        def advance(rows: int) -> None:
            nonlocal done
            done += rows / 2
            progress(name, done, total)

        advance(0)
        return records_of(credit, material, informed=informed, advance=advance, passes=passes)

    kept = {name: run(name, credit) for name, credit in named.items()}
    rows = [
        _localised(name, *kept[name], role="floor" if name in _FLOORS else "method")
        for name in named
        if name in methods or name in _FLOORS
    ]
    uninformed = run(UNINFORMED, {"name": "gear"}, informed=False)
    entropy = run(ENTROPY_ONSETS, {"name": "gear", "onset_signal": "entropy"})
    rows.append(_localised(UNINFORMED, *uninformed, role="control"))
    rows.append(_localised(ENTROPY_ONSETS, *entropy, role="control"))
    for name, signal in SIGNALS.items():
        source = kept["gear" if name in ("entropy", "divergence") else "rlsd"]
        rows.append(_localised(name, *source, role="control", signal=signal))
    rows.append(_localised("oracle", *kept["uniform"], role="ceiling"))
    document = {
        **material.about(),
        "threads": torch.get_num_threads(),
        "methods": {row["name"]: _rounded(row) for row in rows},
        "versions": versions(),
    }
    return document, rows


def remembered(names: Iterable[str]) -> PassesOf:
    """Passes that compute each batch's signals once for all methods; for one set of weights and settings.

    ``names`` are the signals that any method needs: a batch's first request computes all of them. Signals that
    are no fold over the student's and the teacher's pass (saliency, an answer's confidence) are computed anew.
    """
    known: dict[tuple[bytes, ...], dict[str, Tensor]] = {}

    def is_kept(name: str) -> bool:
        return isinstance(SIGNALS_BY_NAME.get(name), FoldSignal)

    later = [name for name in dict.fromkeys(names) if is_kept(name)]

    def answer(request: ForwardRequest, passes: ModelPasses) -> dict[str, Tensor]:
        done, shown = request.completions, (request.student, *request.teachers)
        tensors = (done.ids, done.attention, done.mask, request.scored_B, done.target_ids)
        tensors += tuple(x for one in shown for x in (one.ids_BP, one.attention_BP))
        key = tuple(b"" if x is None else x.cpu().numpy().tobytes() for x in tensors)
        values = known.setdefault(key, {})
        missing: list[str | Signal] = [one for one in signals_of(request.needs) if one.name not in values]
        if any(is_kept(one.name) for one in signals_of(missing)):
            missing += [n for n in later if request.teachers or not SIGNALS_BY_NAME[n].teacher]
        new = passes.run(replace(request, needs=signals_of(missing))) if missing else {}
        values.update({name: value for name, value in new.items() if is_kept(name)})
        return {name: (values | new)[name] for name in names_of(request.needs)}

    return answer


def places_of(document: dict[str, Any], rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The localisations as `findings` takes them.

    >>> places_of({"task": "chain", "tier": "hard", "fault": "result"}, [])["fault"]
    'a wrong result'
    """
    own = "data" in document
    task, tier = ("data", "model") if own else ("task", "tier")
    fault = "a span that was marked" if own else f"a wrong {document['fault']}"
    return {"task": document[task], "tier": document[tier], "fault": fault, "rows": rows, "level": LEVEL}


def records_of(
    credit: dict[str, Any],
    material: Material,
    *,
    informed: bool = True,
    advance: Callable[[int], None] = lambda rows: None,
    passes: PassesOf | None = None,
) -> tuple[list[Case], list[Record]]:
    """The cases and, for each, the engine's record of the faulty completion under a method."""
    with tempfile.TemporaryDirectory(prefix="gear-score-") as folder:
        trainer = make_trainer(material.config(credit, folder))
        cases = material.cases(trainer, informed)
        rows = [case.row | mark for case in cases for mark in material.marks]
        turns = [turns for case in cases for turns in (case.faulty, case.right)]
        batch = int(trainer.args.per_device_train_batch_size)
        try:
            records = replay(trainer, rows, turns, batch=batch, advance=advance, passes=passes)
        except ValueError as error:  # a method may need more than one reward function or turn
            raise InputError(f"--methods: {credit['name']}: {error}") from None
    del trainer
    gc.collect()  # trainer and callbacks refer to each other: the next model would be loaded beside this one
    return cases, records[::2]


def _localised(
    name: str, cases: list[Case], records: list[Record], *, role: Role, signal: str | None = None
) -> dict[str, Any]:
    """Of the credit, or of ``signal`` in its place; the ceiling puts all on the fault."""
    found: list[Located | str] = []
    among_choices: list[Located | str] = []
    for case, record in zip(cases, records, strict=True):
        if record.fallback and role != "ceiling":  # its GRPO advantage is not the method's
            found.append("fallback")
            among_choices.append("fallback")
            continue
        fault = [t in case.fault for t in range(len(record.ids))]
        onset = None
        if role == "ceiling":
            values = [float(wrong) for wrong in fault]
        elif signal is None:
            values, onset = [abs(value) for value in record.credit], onsets_of(record.segment)
        else:
            values = _signal(record, signal)
        trained = [bool(kept) for kept in record.mask]
        # Where decisions are unknown, none are.
        choices = case.choices if len(case.choices) == len(fault) else [False] * len(fault)
        decided = [kept and choice for kept, choice in zip(trained, choices, strict=True)]
        found.append(locate(values, fault, trained, onset))
        among_choices.append(locate(values, fault, decided, onset))
    return localisation(name, found, role, among_choices)


def _signal(record: Record, name: str) -> list[float]:
    if not record.signals:
        return [0.0] * len(record.ids)
    if name == "student_logprob":
        return [-value for value in record.signals[name]]
    if name != "log_ratio":
        return record.signals[name]
    pairs = zip(record.signals["student_logprob"], record.signals["teacher_logprob"], strict=True)
    return [student - teacher for student, teacher in pairs]  # large where the teacher finds a token unlikely


def _rounded(one: dict[str, Any]) -> dict[str, Any]:
    row: dict[str, Any] = {name: one[name] for name in ("role", "n", "left_out")}
    for name in ("auc", "auc_choices", "share", "lift", "rank", "distance"):
        mean, interval, count = one[name]
        row[name] = None if mean is None else round(mean, 4)
        row[f"{name}_interval"] = None if interval is None else [round(end, 4) for end in interval]
        if name in ("distance", "auc_choices"):
            row["with_onset" if name == "distance" else "with_choices"] = count
    return row
