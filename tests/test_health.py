"""A run says how it goes at each step, and warns where it cannot learn or nothing is evaluated."""

import pytest

from gear_rl.health import conclusion, nothing_to_learn
from gear_rl.runs.run_config import load_config
from gear_rl.runs.trl_run import make_trainer
from support.commands import gear

REWARDS = "def none(completions, **columns):\n    return [0.0] * len(completions)\n"


@pytest.fixture
def folder(tmp_path):
    assert gear("init", "mine", cwd=tmp_path).returncode == 0
    (tmp_path / "mine" / "rewards.py").write_text(REWARDS)
    return tmp_path / "mine"


def test_a_run_that_learns_says_how_it_goes(folder):
    done = gear("train", "--config", "run.yaml", "--max_steps", "3", cwd=folder)
    lines = [line for line in done.stderr.splitlines() if line.startswith("step ")]
    assert len(lines) == 3 and "of groups differ in reward" in lines[0], done.stderr
    assert "completions scored" in lines[0] and "of tokens in segments" in lines[0]
    assert "nothing was learned" not in done.stderr


def test_a_run_that_cannot_learn_warns_once(folder):
    done = gear("train", "--config", "run.yaml", "--max_steps", "5", "--reward", "rewards:none", cwd=folder)
    assert done.returncode == 0
    warned = " ".join(done.stderr.split())
    assert warned.count("nothing was learned in the last 3 logged steps: every completion got reward 0") == 1
    assert "reward 0.00, 0% of groups differ in reward, 0 completions scored" in warned


def test_a_run_that_nothing_judges_ends_and_says_so(folder):
    (folder / "rewards.py").write_text(REWARDS.replace("0.0", "None"))
    done = gear("train", "--config", "run.yaml", "--max_steps", "3", "--reward", "rewards:none", cwd=folder)
    assert (
        done.returncode == 0
        and "Every reward function gave None for every completion." in done.stderr + done.stdout
    )
    assert "learned in the last 3 logged steps: every reward function gave None" in " ".join(
        done.stderr.split()
    )


@pytest.mark.parametrize(
    ("logs", "said"),
    [
        ({"gear/weight/max": 1.0, "gear/weight/deviation": 0.0}, "Every weight was 1: this was GRPO."),
        ({"gear/weight/max": 1.0, "gear/weight/deviation": 0.8}, ""),  # weights of 0 and 1
        ({"gear/fallbacks": 8.0}, "Every completion kept its GRPO advantage"),
        ({"gear/fallbacks": 1.0, "gear/weight/deviation": 0.5}, ""),
        ({}, ""),
    ],
)
def test_a_run_that_was_grpo_is_told_so(logs, said):
    told = conclusion([{"reward": 0.5, **logs}] * 10)
    assert said in told and ("GRPO" in told) == bool(said)


def test_held_out_rows_that_nothing_evaluates_are_named_before_the_first_step(folder, monkeypatch, caplog):
    monkeypatch.chdir(folder)
    make_trainer(load_config("run.yaml", ["--held_out", "2"]))
    assert "eval_dataset, held_out: nothing evaluates these rows; set eval_strategy" in caplog.text


def test_an_agent_that_calls_no_tool_is_told_so():
    logs = {"frac_reward_zero_std": 1.0, "reward": 0.0, "grad_norm": 0.0, "tools/call_frequency": 0.0}
    assert (nothing_to_learn(logs) or "").startswith("no completion called a tool: first fine-tune the model")
    assert "No completion called a tool: first fine-tune the model" in conclusion([logs] * 10)
    assert "called a tool" not in conclusion([logs, logs | {"tools/call_frequency": 0.5}])


def test_one_logged_step_has_no_first_and_last():
    assert conclusion([{"reward": 0.25}]) == "The reward was 0.25 in the one logged step."


def test_tools_that_fail_are_told():
    log = {
        "reward": 0.0,
        "tools/failure_frequency": 0.75,
        "gear/tools/raised": 8.0,
        "gear/tools/timeout": 0.0,
    }
    assert "75% of tool calls failed (raised)." in conclusion([log] * 10)
