"""With the method that changes nothing, our trainer is verl's own."""

from pathlib import Path

import pytest
import torch

from gear_rl.records import read_records
from verl_cpu import harness


def test_uniform_trains_as_verls_own_trainer_and_replaces_no_records(chain: Path, tmp_path: Path):
    (tmp_path / "stock").mkdir()
    stock = harness.train(tmp_path / "stock", chain, harness.SEEDED, steps=2)
    checkpoints = tmp_path / "uniform" / "checkpoints"
    checkpoints.mkdir(parents=True)
    (checkpoints / "records.jsonl").write_text("a run before\n")
    settings = [
        "trainer.v1.trainer_mode=gear_sync",
        "+gear.credit=uniform",
        "+gear.record_file=records.jsonl",
    ]
    uniform = harness.train(tmp_path / "uniform", chain, harness.SEEDED, *settings, steps=2)
    for step in (1, 2):
        theirs, ours = stock.by_place(step), uniform.by_place(step)
        assert theirs.keys() == ours.keys() and len(ours) == 16 * 8
        for place, row in theirs.items():
            for name, values in row.items():
                assert torch.equal(values, ours[place][name]), f"{name} of rollout {place}"
    for name in ("actor/pg_loss", "actor/grad_norm", "actor/entropy", "critic/rewards/mean"):
        # Rollouts come in another order in every run, which moves the last bits of a sum.
        assert uniform.column(name) == pytest.approx(stock.column(name), rel=1e-4, abs=1e-6), name
    assert any(name.startswith("gear/") for name in uniform.steps[0])
    assert len(list(read_records(checkpoints / "records.jsonl"))) == 2 * 16 * 8
    assert (checkpoints / "records.1.jsonl").read_text() == "a run before\n"
