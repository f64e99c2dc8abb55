"""Training with GEAR on two ranks."""

from pathlib import Path

from gear_rl.records import read_records
from verl_cpu import harness, reference


def test_two_ranks_learn_with_the_credit_of_one_process(chain: Path, tmp_path: Path):
    record = f"+gear.record_file={tmp_path}/records.jsonl"
    run = harness.train(tmp_path, chain, *harness.GEAR, record, steps=8, ranks=2)
    rewards = run.column("critic/rewards/mean")
    assert rewards[0] < 0.35 and rewards[-1] > 0.55, rewards
    used = [record for record in read_records(tmp_path / "records.jsonl") if record.advantage != 0]
    spread = [max(record.weight) - min(record.weight) for record in used if record.fallback is None]
    assert len(spread) > 0.9 * len(used)
    assert sum(width > 0.1 for width in spread) > 0.5 * len(spread)
    saved = run.watched("credit1")
    assert all(row["privileged_context"].endswith(row["answer"]) for row in saved["batch"]["rows"]), (
        "a column"
    )
    alone = reference.credited(saved["batch"], chain / "model", "gear")
    reference.assert_same(saved, alone, at_least=64)
