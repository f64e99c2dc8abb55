"""A privileged context of its own in every row, in many set-ups: does any of it reach the student?

It is looked for in every id that the student is generated from, samples and is trained on, in all output, and in
every file except for a record's ``teacher_prompt``.
"""

import json
import random
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet
import pytest
import torch
import transformers
from datasets import Dataset
from transformers import Qwen3ForCausalLM

from campaign.runs import forked
from engines import tiny
from engines.watching import Watch, kept_ids
from gear_rl import Gear, GEARConfig, GEARTrainer
from gear_rl.methods import METHODS
from gear_rl.records import read_records
from gear_rl.signals.table import needs_context

_WORD = re.compile(r"QZ[0-9a-f]{12}")
_PROMPTS, _SIBLINGS = 64, 4
_ROLLOUTS = _PROMPTS * _SIBLINGS
"""Of one step."""


class Knowing:
    """Has a privileged context of its own, for the teacher."""

    draws = random.Random(0)

    def reset(self, **row: Any) -> str:
        self._context = _context(self.draws)
        return " go"

    def privileged_context(self) -> str:
        return self._context

    def look(self) -> str:
        """Look around."""
        return "nothing"


_SET_UPS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "splice": ({"teacher_prompt": "splice"}, {}),
    "TRL's old pass": ({"num_iterations": 2}, {}),
    "live teacher": ({"teacher_model_kind": "live"}, {}),
    "ema teacher": ({"teacher_model_kind": "ema"}, {}),
    "sync teacher": ({"teacher_model_kind": "sync", "teacher_sync_steps": 1}, {}),
    "another row's context": ({"teacher_contrast": "shuffled"}, {}),
    "another column": ({"privileged_column": "gold"}, {}),
    "checkpoints amid rollouts": ({"num_iterations": 2, "save_strategy": "steps", "save_steps": 1}, {}),
    "a function": (
        {"privileged_sources": ["function"]},
        {"privileged": lambda row, rollout: row["privileged_context"]},
    ),
    "evaluation": ({"eval_strategy": "steps", "eval_steps": 1, "per_device_eval_batch_size": _PROMPTS}, {}),
    "an environment's own": ({"max_tool_calling_iterations": 1}, {"environment_factory": Knowing}),
}
"""The settings and the trainer's arguments that differ from a plain run with GEAR."""
_METHODS = [name for name, cls in METHODS.items() if needs_context(cls())]


def canary(scratch: Path, rollouts: int, seed: int) -> dict[str, Any]:
    """At least so many rollouts, divided among all set-ups."""
    model, names = tiny.save(scratch / "model"), [*_SET_UPS, *_METHODS]
    steps = -(-rollouts // (_ROLLOUTS * len(names)))
    counts, faults = Counter[str](), list[str]()
    for name in names:
        folder, report = scratch / name.replace(" ", "_"), scratch / "report.json"
        report.unlink(missing_ok=True)
        work = partial(_trained, name, model, folder, steps)
        draws = random.Random(f"{seed} {name}")
        code, said = forked(partial(_watched, work, report, draws), folder.with_suffix(".log"))
        if code:
            faults.append(f"{name}: the run fails: {said[-2000:]}")
            continue
        found = json.loads(report.read_text()) | {_FILES: _in_files(folder) + len(_WORD.findall(said))}
        counts.update(found)
        faults += [f"{name}: {found[what]} {what}" for what in (_LEAKED, _FILES) if found[what]]
        if found[_TAUGHT] < steps * _ROLLOUTS / 2:
            faults.append(f"{name}: {found[_TAUGHT]} {_TAUGHT}, so nothing is shown")
    outcomes = {"set-ups": len(names)} | {what: n for what, n in counts.items() if what != "rollouts"}
    return {"n": counts["rollouts"], "outcomes": outcomes, "faults": faults}


_SHOWN, _LEAKED = "ids shown to the student", "canaries among them"
_FILES, _TAUGHT = "canaries in files and output", "teacher's prompts with a canary"


def _context(draws: random.Random) -> str:
    """Words that a random model never writes by chance; one is enough to be found."""
    return " ".join(f"QZ{draws.getrandbits(48):012x}" for _ in range(3))


def _rows(draws: random.Random, column: str = "privileged_context") -> list[dict[str, Any]]:
    """Rows with a context in that column and in the default one, which the student never sees either."""
    names = {"privileged_context", column}
    return [{**row, **{name: _context(draws) for name in names}} for row in tiny.rows(_PROMPTS)]


def _settings(folder: Path, steps: int) -> dict[str, Any]:
    return tiny.settings(
        folder, record_file=str(folder / "records.jsonl"), max_steps=steps, num_generations=_SIBLINGS,
        per_device_train_batch_size=_PROMPTS, gradient_accumulation_steps=_SIBLINGS, log_completions=True,
        num_completions_to_print=2, max_completion_length=4,
    )  # fmt: skip


def _trained(name: str, model: str, folder: Path, steps: int, draws: random.Random) -> None:
    more, options = _SET_UPS.get(name, ({"privileged_sources": ["row"]}, {}))
    rows = Dataset.from_list(_rows(draws, more.get("privileged_column", "privileged_context")))
    if "eval_strategy" in more:
        options = {"eval_dataset": rows}
    credit = METHODS[name]() if name in _METHODS else Gear()
    settings = GEARConfig(**_settings(folder, steps) | more)
    trainer = GEARTrainer(model, tiny.vowels, settings, rows, credit=credit, **options)
    trainer.train()
    trainer.save_model()


def _watched(work: Callable[[random.Random], None], report: Path, draws: random.Random) -> None:
    """Run ``work``, and report what its student and its teacher were shown."""
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    patch, trained_on = pytest.MonkeyPatch(), list[list[int]]()
    watch, prepare = Watch(patch, Qwen3ForCausalLM), GEARTrainer._prepare_inputs

    def prepared(trainer: GEARTrainer, batch: Any) -> Any:
        inputs = prepare(trainer, batch)
        for part in ("prompt", "completion"):
            trained_on.extend(kept_ids(inputs[f"{part}_ids"], inputs[f"{part}_mask"]))
        return inputs

    patch.setattr(GEARTrainer, "_prepare_inputs", prepared)
    work(draws)
    decode = tiny.tokenizer().decode
    shown = [*watch.generated_from, *watch.sampled, *trained_on]
    found = {
        "rollouts": len(watch.sampled),
        _SHOWN: sum(map(len, shown)),
        _LEAKED: sum(len(_WORD.findall(decode(ids))) for ids in shown),
        _TAUGHT: sum(_WORD.search(decode(ids)) is not None for ids in (*watch.teacher, *watch.told)),
    }
    report.write_text(json.dumps(found))


def _in_files(folder: Path) -> int:
    """Canaries in the files of a run's folder."""
    found = 0
    for path in folder.rglob("*"):
        if path.name == "records.jsonl":
            texts = [replace(record, teacher_prompt=None).to_json() for record in read_records(path)]
        elif path.suffix == ".parquet":
            texts = [str(row) for row in parquet.read_table(path).to_pylist()]
        else:
            texts = [path.read_bytes().decode("latin-1")] if path.is_file() else []
        found += sum(len(_WORD.findall(text)) for text in texts)
    return found
