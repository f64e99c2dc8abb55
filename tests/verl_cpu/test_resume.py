"""A run on two processes, resumed from verl's checkpoint, gives the credit and the records of the whole run."""

import json
from pathlib import Path

from gear_rl.records import read_records
from verl_cpu import harness, reference


def test_a_resumed_run_gives_the_same_credit_and_records(chain: Path, tmp_path: Path):
    # AntiSD's gate follows the teacher's entropy from the first step on.
    method = "+gear.credit='gear+antisd:warmup_steps=1,close_below=1.0'"
    settings = [harness.SEEDED, *harness.GEAR[::2], method, "trainer.save_freq=2"]
    settings += ["+gear.record_file=records.jsonl"]
    records = tmp_path / "checkpoints" / "records.jsonl"

    def run(*resume: str):
        found = harness.train(tmp_path, chain, *settings, *resume, steps=3, ranks=2, rollouts=(8, 8))
        assert [record.step for record in read_records(records)] == [1] * 64 + [2] * 64 + [3] * 64
        return reference.by_rollout(found.watched("credit3"))

    one = run()
    (tmp_path / "credit3.pt").unlink()
    checkpoint = tmp_path / "checkpoints" / "global_step_2"
    assert len(json.loads((checkpoint / "gear_state.json").read_text())["second"]["gate"]) == 2
    other = run("trainer.resume_mode=resume_path", f"trainer.resume_from_path={checkpoint}")
    assert one.keys() == other.keys() and len(one) >= 30
    for name in ("advantage", "divergence"):
        gap = max((one[key][name] - other[key][name]).abs().max().item() for key in one)
        assert gap <= 1e-5, (name, gap)
