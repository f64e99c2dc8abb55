"""`gear train` with tools, environments, a function for the privileged context, and evaluation by tier."""

import json

import pytest

from gear_rl.records import read_records
from support.commands import gear


@pytest.fixture
def folder(tmp_path):
    for name, count in (("train", 16), ("easy", 3), ("hard", 5)):
        rows = [{"question": f"{i} plus {i}", "number": i} for i in range(count)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return tmp_path


def run(folder, model, *lines):
    (folder / "run.yaml").write_text(
        f"model: {model}\ndataset: train.jsonl\ncolumns: {{prompt: question}}\n"
        "max_completion_length: 12\noutput_dir: out\nrecord_file: records.jsonl\nmax_steps: 2\n"
        "per_device_train_batch_size: 8\nnum_generations: 4\nsave_strategy: no\n" + "\n".join(lines)
    )
    return gear("train", "--config", "run.yaml", cwd=folder)


def test_an_environment_a_function_and_evaluation_by_tier(folder, tiny_model):
    done = run(
        folder,
        tiny_model,
        "environment: support.desk:Desk\nprivileged: support.desk:below_best\nsuccess_reward: 0.5",
        "eval_dataset: {easy: easy.jsonl, hard: hard.jsonl}\neval_strategy: steps\neval_steps: 1",
        "num_generations_eval: 2\nper_device_eval_batch_size: 4\nmax_tool_calling_iterations: 2",
    )
    assert done.returncode == 0, done.stderr
    records = list(read_records(folder / "out" / "records.jsonl"))
    assert len(records) == 16
    assert {(r.context, r.fallback) for r in records} == {("function", None), (None, "no_context")}
    assert all((r.context is None) == (r.reward >= 0.9) for r in records)
    history = json.loads((folder / "out" / "trainer_state.json").read_text())["log_history"]
    for tier, count in (("easy", 3), ("hard", 5)):
        [first, second] = [e for e in history if f"eval_{tier}_pass@2" in e]
        assert first[f"eval_{tier}_problems"] == count
        assert second[f"eval_{tier}_greedy_low"] <= second[f"eval_{tier}_greedy"]


def test_tools_and_rewards_with_weights(folder, tiny_model):
    done = run(
        folder,
        tiny_model,
        "tools: [support.desk:add]\nreward: [support.desk:digits, think_format_reward]",
        "reward_weights: [0.5, 2.0]\ncredit: uniform",
    )
    assert done.returncode == 0, done.stderr
    records = list(read_records(folder / "out" / "records.jsonl"))
    assert all('"add"' in record.prompt for record in records)
    digits = [sum(letter in "0123456789" for letter in "".join(record.tokens)) for record in records]
    assert [record.reward for record in records] == [0.5 * count for count in digits]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "environment: support.desk:Desk2\n",
            "gear: environment: 'support.desk' has no 'Desk2'; did you mean Desk",
        ),
        (
            "environment: support.desk:Desk\nprivileged: support.desk:add\n",
            "gear: privileged: support.desk:add raised TypeError: unsupported operand",
        ),
        (
            "reward: support.desk:digits\nheld_out: 4\neval_dataset: easy.jsonl\n",
            "gear: held_out: there is an eval",
        ),
    ],
)
def test_a_wrong_setting_is_one_line(folder, tiny_model, text, message):
    done = run(folder, tiny_model, text)
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
    assert message in done.stderr
