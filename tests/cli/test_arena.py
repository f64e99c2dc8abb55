"""`gear arena check` and `gear demo --task errands`, as a user calls them."""

import json

import pytest

from gear_rl.arena.errands import check
from gear_rl.arena.errands.recipe import Recipe
from gear_rl.arena.task import get_task
from gear_rl.cli.arena import build, table_of
from gear_rl.records import read_records
from support.commands import gear


def test_the_errands_check_measures_what_the_docs_claim(unchecked):
    words = ["--task", "errands", "--tier", "default", "--n", "12", "--faults", "20", "--json"]
    done = gear("arena", "check", *words)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["default"]
    assert found["n"] == 12
    assert found["sampled"] < 0.7 < 0.9 < found["sampled_trace"]
    assert found["sampled_shuffled"] < 0.7, "another problem's calls help nobody"
    planted = found["planted"]
    assert planted["n"] == 20
    assert planted["auc_choices"]["log_ratio"] > 0.95 > 0.8 > planted["auc_choices"]["shuffled_log_ratio"]
    tables = map(table_of, get_task("errands").tables({"default": found}))
    assert [table.row_count for table in tables] == [1, 1, 2]


@pytest.mark.parametrize(
    "words", [["--task", "leger"], ["--tier", "defualt"], ["--n", "0"], ["--faults", "2000"]]
)
def test_bad_options_are_one_line(words):
    done = gear("arena", "check", *words)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert words[0] in done.stderr


def test_the_chain_tables():
    signals = ("divergence", "log_ratio", "entropy", "shuffled_divergence", "shuffled_log_ratio")
    ranks = {"n": 3, **dict.fromkeys(signals, 0.5)}
    columns = ("sampled", "greedy", "sampled_trace", "sampled_answer", "sampled_shuffled")
    facts = {"easy": {"n": 8, **dict.fromkeys(columns, 0.25), "on_policy": ranks, "planted": ranks}}
    assert [table_of(table).row_count for table in get_task("chain").tables(facts)] == [1, 2]


def test_an_agent_learns_in_the_demo(tmp_path):
    words = ["--task", "errands", "--credit", "gear", "--steps", "1", "--n-eval", "8"]
    done = gear("demo", *words, "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert (summary["task"], summary["tier"], summary["method"]) == ("errands", "default", "gear")
    assert "turn 1  " in done.stdout
    assert "answer  «" in done.stdout
    assert "<tool_call>" in done.stdout
    records = list(read_records(tmp_path / "records.jsonl"))
    assert len(records) == 16
    assert {record.context for record in records} == {"environment"}
    assert any(max(record.turn) >= 2 for record in records)
    assert sum(record.tools["calls"] for record in records if record.tools) > 64
    assert all("ref <tool_call>" not in record.prompt for record in records)


def test_measuring_while_a_checkpoint_is_built_changes_no_byte(tmp_path, capsys, monkeypatch):
    success = check.success
    monkeypatch.setattr(check, "success", lambda trainer, rows: success(trainer, rows[:2]))
    short = {"copy_steps": 1, "short_steps": 1, "grow_steps": 1, "fall_steps": 1, "draws": 24}
    recipe = Recipe(steps=2, settle_steps=1, batch_tokens=450, evaluate_every=3, **short)
    task = get_task("errands")
    task.build(tmp_path / "alone", 0, recipe=recipe, progress=False)
    build(tmp_path / "measured", task, 0, recipe)
    assert "accuracy 0.0" in capsys.readouterr().out, "else nothing was measured"
    names = sorted(path.name for path in (tmp_path / "alone").iterdir())
    assert "model.safetensors" in names
    for name in names:
        assert (tmp_path / "alone" / name).read_bytes() == (tmp_path / "measured" / name).read_bytes(), name
