"""`gear train` and `gear demo`, from the command to the files they leave."""

import json

from gear_rl.records import read_records
from support.commands import gear

SMALL = [
    "--max_steps",
    "2",
    "--per_device_train_batch_size",
    "8",
    "--num_generations",
    "4",
    "--save_strategy",
    "no",
]


def test_train_runs_a_local_model_dataset_and_reward(tiny_model, tmp_path):
    rows = [{"question": f"{i} plus {i}", "gold": str(2 * i)} for i in range(8)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "mine.py").write_text(
        "def digits(completions, **kwargs):\n"
        "    return [float(sum(map(str.isdigit, c[0]['content']))) for c in completions]\n"
    )
    (tmp_path / "run.yaml").write_text(
        f"model: {tiny_model}\ndataset: rows.jsonl\ncolumns: {{prompt: question, answer: gold}}\n"
        "reward: mine:digits\ncredit: gear\nmax_completion_length: 8\nrecord_file: out/records.jsonl\n"
        "output_dir: out\nlora: {r: 2, target_modules: [q_proj]}\n"
    )
    done = gear("train", "--config", "run.yaml", *SMALL, "--credit.alpha", "0.5", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "privileged context: answer for 8 rows" in done.stderr
    assert "train 2/2  reward" in done.stderr
    assert (tmp_path / "out" / "adapter_model.safetensors").exists()
    assert len(list(read_records(tmp_path / "out" / "records.jsonl"))) == 16


def test_the_demo_leaves_its_three_files(tmp_path):
    credit = "shuffled"  # `make demo` is the other one
    words = [
        "demo",
        "--credit",
        credit,
        "--steps",
        "2",
        "--n-eval",
        "16",
        "--out",
        str(tmp_path),
        "--seed",
        "1",
    ]
    done = gear(*words)
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "summary.json").read_text())
    wanted = {
        "task",
        "method",
        "steps",
        "seed",
        "accuracy_before",
        "accuracy_after",
        "n_eval",
        "seconds",
        "versions",
    }
    assert set(summary) >= wanted
    assert (summary["task"], summary["method"], summary["steps"], summary["seed"]) == ("chain", credit, 2, 1)
    assert 0 <= summary["accuracy_before"] <= 1
    assert summary["versions"]["trl"]
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    records = list(read_records(tmp_path / "records.jsonl"))
    assert {record.step for record in records} == {0, 1}
    assert {record.method for record in records} == {credit}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["curves.png", "records.jsonl", "summary.json"]
    assert "held-out problems" in done.stdout
