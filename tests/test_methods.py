"""Every method of the catalogue trains the arena's task through the real engine; run alone with -m methods."""

import math

import pytest
from transformers.trainer_callback import PrinterCallback, ProgressCallback

from gear_rl.methods import METHODS
from gear_rl.records import read_records
from gear_rl.runs.arena import arena_config
from gear_rl.runs.machine import quiet_libraries
from gear_rl.runs.trl_run import make_trainer
from gear_rl.signals.signal import names_of
from gear_rl.traits import distillation_of
from support.commands import untouched

pytestmark = pytest.mark.methods
STEPS = 2
TURNS = {"turn_reward", "anchor_id", "answer_confidence"}
AGENTS = {name for name, cls in METHODS.items() if TURNS & set(names_of(cls().needs))} | {
    "serl",
    "agent_opsd",
    "step_scores",
}
"""Methods that tell turns apart: they train the task with tools."""
SETTINGS = {"fixed_spans": {"name": "fixed_spans", "span_tokens": 4}}
"""A completion of this tier is shorter than a span of the default length."""


@pytest.mark.parametrize("name", METHODS)
def test_a_method_trains_without_a_non_finite_value(name, tmp_path):
    with untouched(None):
        quiet_libraries()
        task = "errands" if name in AGENTS else "chain"
        places = {"output_dir": str(tmp_path), "record_file": str(tmp_path / "records.jsonl")}
        config = arena_config(
            task, "easy", SETTINGS.get(name, name), seed=1, steps=STEPS, rollouts_per_step=8, **places
        )
        trainer = make_trainer(config)
        for printer in (PrinterCallback, ProgressCallback):
            trainer.remove_callback(printer)
        trainer.train()
    entries = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert len(entries) == STEPS
    for entry in entries:
        assert all(math.isfinite(value) for value in entry.values() if isinstance(value, int | float)), entry
        assert entry["gear/fallback/non_finite"] == 0
    assert all(p.isfinite().all() for p in trainer.model.parameters())
    if METHODS[name]().needs:
        assert sum(entry["gear/scored"] for entry in entries) > 0
    if distillation_of(METHODS[name]()) is not None:
        assert any(entry.get("gear/distill/term", 0.0) > 0 for entry in entries)
    records = list(read_records(tmp_path / "records.jsonl"))
    assert records and all(math.isfinite(value) for record in records for value in record.credit)
    if name != "uniform" and distillation_of(METHODS[name]()) is None:
        moved = [r for r in records if any(w != 1 for w, kept in zip(r.weight, r.mask, strict=True) if kept)]
        assert moved, "the method was GRPO all along"
