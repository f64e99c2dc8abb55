"""`gear demo --task errands`, as a user calls it."""

from gear_rl.records import read_records
from support.commands import gear


def test_an_agent_learns_in_the_demo(tmp_path):
    words = ["--task", "errands", "--tier", "easy", "--credit", "gear", "--steps", "1", "--n-eval", "8"]
    done = gear("demo", *words, "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "pass@1" in done.stderr and "dataset: arena/errands/easy" in (tmp_path / "report.html").read_text()
    assert all(part in done.stdout for part in ("turn 1  ", "answer  «", "<tool_call>"))
    records = list(read_records(tmp_path / "records.jsonl"))
    assert len(records) == 16
    assert {record.context for record in records} == {"environment"}
    assert any(max(record.turn) >= 2 for record in records)
    assert sum(record.tools.get("calls", 0) for record in records) > 32
    assert all("ref <tool_call>" not in record.prompt for record in records)
