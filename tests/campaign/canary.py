"""A privileged context of its own in every row, in many set-ups: does any of it reach the student?

Looked at is every id that the student is generated from, samples and is trained on, all that is printed, and
every file but a record's ``teacher_prompt``.
"""

import json
import random
import re
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet
import pytest
import torch
import transformers
from datasets import Dataset
from transformers import Qwen3ForCausalLM

from campaign.runs import forked, rng
from engines import tiny
from engines.watching import Watch, kept_ids
from gear_rl import Gear, GEARConfig, GEARTrainer
from gear_rl.cli import main as command_line
from gear_rl.credit.contexts import needs_context
from gear_rl.methods import METHODS
from gear_rl.records import read_records
from gear_rl.types import CreditAssigner

_WORD = re.compile(r"QZ[0-9a-f]{12}")
_PROMPTS, _SIBLINGS = 64, 4
_ROLLOUTS = _PROMPTS * _SIBLINGS
"""Of one step."""


class Talkative:
    """Shows the student all that it is given."""

    def reset(self, **row: Any) -> str:
        return f" {row}"

    def look(self) -> str:
        """Look around."""
        return "nothing"


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


@dataclass(frozen=True)
class SetUp:
    """What is unlike a plain run with GEAR."""

    credit: CreditAssigner = field(default_factory=Gear)
    settings: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    evaluates: bool = False


_TOOLS = {"max_tool_calling_iterations": 1}
SET_UPS = {
    "splice": SetUp(settings={"teacher_prompt": "splice"}),
    "a student's pass of its own": SetUp(settings={"student_pass": "own"}),
    "live teacher": SetUp(settings={"teacher_model_kind": "live"}),
    "ema teacher": SetUp(settings={"teacher_model_kind": "ema"}),
    "sync teacher": SetUp(settings={"teacher_model_kind": "sync", "teacher_sync_steps": 1}),
    "another row's context": SetUp(settings={"teacher_contrast": "shuffled"}),
    "another column": SetUp(settings={"privileged_column": "gold"}),
    "checkpoints amid rollouts": SetUp(
        settings={"num_iterations": 2, "save_strategy": "steps", "save_steps": 1}
    ),
    "a function": SetUp(
        settings={"privileged_sources": ["function"]},
        options={"privileged": lambda row, rollout: row["privileged_context"]},
    ),
    "evaluation": SetUp(evaluates=True),
    "reset shows its row": SetUp(settings=_TOOLS, options={"environment_factory": Talkative}),
    "reset shows another column": SetUp(
        settings={**_TOOLS, "privileged_column": "gold"}, options={"environment_factory": Talkative}
    ),
    "an environment's own": SetUp(settings=_TOOLS, options={"environment_factory": Knowing}),
    **{
        name: SetUp(cls(), {"privileged_sources": ["row"]})
        for name, cls in METHODS.items()
        if needs_context(cls())
    },
}
COMMAND = "gear train"


def canary(scratch: Path, rollouts: int, seed: int, say: Callable[[int], None]) -> dict[str, Any]:
    """At least so many rollouts, divided among all set-ups."""
    model, names = tiny.save(scratch / "model"), [*SET_UPS, COMMAND]
    steps = -(-rollouts // (_ROLLOUTS * len(names)))
    counts, faults = Counter[str](), list[str]()
    for name in names:
        folder, report = scratch / name.replace(" ", "_"), scratch / "report.json"
        report.unlink(missing_ok=True)
        work = partial(_commanded if name == COMMAND else partial(_trained, name), model, folder, steps)
        ended = forked(partial(_watched, work, report, rng(seed, name)), folder.with_suffix(".log"))
        if ended.code:
            faults.append(f"{name}: the run fails: {ended.said[-2000:]}")
            continue
        found = json.loads(report.read_text()) | {_FILES: _in_files(folder) + len(_WORD.findall(ended.said))}
        counts.update(found)
        faults += [f"{name}: {found[what]} {what}" for what in (_LEAKED, _FILES) if found[what]]
        if found[_TAUGHT] < steps * _ROLLOUTS / 2:
            faults.append(f"{name}: {found[_TAUGHT]} {_TAUGHT}, so nothing is shown")
        say(counts["rollouts"])
    outcomes = {"set-ups": len(names)} | {what: n for what, n in counts.items() if what != "rollouts"}
    return {"n": counts["rollouts"], "outcomes": outcomes, "faults": faults}


_SHOWN, _LEAKED = "ids shown to the student", "canaries among them"
_FILES, _TAUGHT = "canaries in files and output", "teacher's prompts with a canary"


def _context(draws: random.Random) -> str:
    """Words that a random model never writes by chance; one is enough to be found."""
    return " ".join(f"QZ{draws.getrandbits(48):012x}" for _ in range(3))


def _rows(draws: random.Random, column: str | None) -> list[dict[str, Any]]:
    """The default's name is none of the student's business, even where another column is named."""
    names = {"privileged_context", column or "privileged_context"}
    return [{**row, **{name: _context(draws) for name in names}} for row in tiny.rows(_PROMPTS)]


def _settings(folder: Path, steps: int) -> dict[str, Any]:
    return tiny.settings(
        folder, record_file=str(folder / "records.jsonl"), max_steps=steps, num_generations=_SIBLINGS,
        per_device_train_batch_size=_PROMPTS, gradient_accumulation_steps=_SIBLINGS, log_completions=True,
        num_completions_to_print=2, max_completion_length=4,
    )  # fmt: skip


def _trained(name: str, model: str, folder: Path, steps: int, draws: random.Random) -> None:
    set_up = SET_UPS[name]
    rows = Dataset.from_list(_rows(draws, set_up.settings.get("privileged_column")))
    settings = _settings(folder, steps) | set_up.settings
    options = dict(set_up.options)
    if set_up.evaluates:
        settings |= {"eval_strategy": "steps", "eval_steps": 1, "per_device_eval_batch_size": _PROMPTS}
        options["eval_dataset"] = rows
    trainer = GEARTrainer(model, tiny.vowels, GEARConfig(**settings), rows, credit=set_up.credit, **options)
    trainer.train()
    trainer.save_model()


def _commanded(model: str, folder: Path, steps: int, draws: random.Random) -> None:
    """``gear train``, with the rows in a file beside the run's folder."""
    rows = folder.with_suffix(".jsonl")
    rows.write_text("".join(json.dumps(row) + "\n" for row in _rows(draws, None)))
    given = {"model": model, "dataset": rows, "reward": "engines.tiny:vowels", **_settings(folder, steps)}
    sys.argv = [
        "gear",
        "train",
        *(
            f"--{name}={str(value).lower() if isinstance(value, bool) else value}"
            for name, value in given.items()
        ),
    ]
    try:
        command_line()
    except SystemExit as end:
        if end.code:
            raise


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
