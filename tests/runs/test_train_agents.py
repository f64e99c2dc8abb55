"""`gear train` with tools, environments, a function for the privileged context, and evaluation by tier."""

import json

import pytest

from gear_rl.arena.task import get_task
from gear_rl.records import read_records
from gear_rl.runs import trainer
from gear_rl.runs.config import RunConfig
from gear_rl.runs.trainer import arena_model, load_data
from support.commands import gear

MODULE = '''
import random

class Desk:
    def reset(self, number, **row):
        self.number, self.seen = number, set(row)

    def look(self, place: str) -> str:
        """Look.

        Args:
            place: Where.
        """
        return "nothing"

    def get_reward(self) -> float:
        return 1.0 if self.number % 4 == 0 else 0.2

def told(row, rollout):
    return f"It is {row['number']}." if rollout.reward < 0.9 else None

def add(a: int, b: int) -> int:
    """Add.

    Args:
        a: One.
        b: Other.
    """
    return a + b

def digits(completions, **columns):
    return [float(sum(letter in "0123456789" for letter in c[-1]["content"])) for c in completions]

def rolled(prompts, trainer):
    ids = trainer.processing_class(["12 ok", "no", "3", "45"] * 8)["input_ids"][: len(prompts)]
    shown = [trainer.processing_class(p[0]["content"])["input_ids"] for p in prompts]
    return {"prompt_ids": shown, "completion_ids": ids, "logprobs": None}
'''


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "mine.py").write_text(MODULE)
    for name, count in (("train", 16), ("easy", 3), ("hard", 5)):
        rows = [{"question": f"{i} plus {i}", "number": i} for i in range(count)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return tmp_path


def run(folder, model, text):
    (folder / "run.yaml").write_text(
        f"model: {model}\ndataset: train.jsonl\ncolumns: {{prompt: question}}\n"
        "max_completion_length: 12\noutput_dir: out\nrecord_file: records.jsonl\nmax_steps: 2\n"
        "per_device_train_batch_size: 8\nnum_generations: 4\nsave_strategy: no\n" + text
    )
    return gear("train", "--config", "run.yaml", cwd=folder)


def test_an_environment_a_function_and_evaluation_by_tier(folder, tiny_model):
    done = run(
        folder,
        tiny_model,
        "environment: mine:Desk\nprivileged: mine:told\neval_dataset: {easy: easy.jsonl, hard: hard.jsonl}\n"
        "eval_strategy: steps\neval_steps: 1\nnum_generations_eval: 2\nper_device_eval_batch_size: 4\n"
        "max_tool_calling_iterations: 2\nsuccess_reward: 0.5\n",
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
        "tools: [mine:add]\nreward: [mine:digits, think_format_reward]\nreward_weights: [0.5, 2.0]\n"
        "credit: uniform\n",
    )
    assert done.returncode == 0, done.stderr
    records = list(read_records(folder / "out" / "records.jsonl"))
    assert all('"add"' in record.prompt for record in records)
    digits = [sum(letter in "0123456789" for letter in "".join(record.tokens)) for record in records]
    assert [record.reward for record in records] == [0.5 * count for count in digits]


def test_a_rollout_function_and_an_adapter(folder, tiny_model):
    done = run(
        folder,
        tiny_model,
        "rollout_func: mine:rolled\nreward: mine:digits\nteacher_prompt: splice\nprivileged_column: number\n"
        "lora: {r: 2, target_modules: [q_proj]}\n",
    )
    assert done.returncode == 0, done.stderr
    assert "privileged context: number for 16 rows" in done.stderr
    assert "train 2/2  reward" in done.stderr
    assert (folder / "out" / "adapter_model.safetensors").exists()
    records = list(read_records(folder / "out" / "records.jsonl"))
    assert {"".join(record.tokens) for record in records} == {"12 ok", "no", "3", "45"}
    assert {record.context for record in records} == {"number"}


def test_a_run_reads_the_rows_and_the_settings_of_its_dataset(monkeypatch):
    monkeypatch.setattr(trainer, "load_rows", lambda name, **given: given["config"])
    named = {"same": "a", "other": "b"}
    config = RunConfig(model="arena", dataset="a", dataset_config="x", eval_dataset=named)
    assert load_data(config) == ("x", {"same": "x", "other": None})
    _, _, settings = arena_model(RunConfig(model="arena", dataset="arena/codebook/easy"))
    assert settings["answer_pattern"] == get_task("codebook").answer_pattern


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("environment: mine:Desk2\n", "gear: environment: 'mine' has no 'Desk2'; did you mean Desk"),
        ("environment: arena\n", "gear: environment: 'arena' needs the dataset arena/errands"),
        ("reward: mine:digits\ntools: [mine:random]\n", "gear: tools: mine:random is module"),
        (
            "environment: mine:Desk\nprivileged_sources: [oracle]\n",
            "gear: privileged_sources: 'oracle' is not one of",
        ),
        ("environment: mine:Desk\ntool_time_limit: 0\n", "gear: tool_time_limit: 0.0; give seconds"),
        (
            "environment: mine:Desk\nprivileged_sources: [environment]\n",
            "gear: privileged_sources: environment gives method 'gear' no privileged context",
        ),
        ("environment: mine:Desk\n", "gear: train_dataset: method 'gear' compares"),
        (
            "reward: mine:digits\nprivileged_column: number\nteacher_contrast: wrong\n",
            "gear: teacher_contrast: 'wrong' is neither 'sibling' nor 'shuffled' nor a column",
        ),
        (
            "environment: mine:Desk\nprivileged: mine:add\n",
            "gear: privileged: mine:add raised TypeError: unsupported operand",
        ),
        ("reward: mine:digits\nheld_out: 4\neval_dataset: easy.jsonl\n", "gear: held_out: there is an eval"),
    ],
)
def test_what_a_user_can_mend_is_one_line(folder, tiny_model, text, message):
    done = run(folder, tiny_model, text)
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
    assert message in done.stderr
