"""The lines of a run's progress."""

import io
import time
from types import SimpleNamespace

from rich.console import Console

from gear_rl.cli.progress import ProgressLine


def test_a_step_that_no_reward_function_judged_is_shown():
    out = io.StringIO()
    line = ProgressLine(Console(file=out, width=200))
    state = SimpleNamespace(global_step=1, max_steps=2, is_world_process_zero=True)
    line.on_log(
        None, state, None, {"reward": None, "frac_reward_zero_std": 1.0, "gear/teacher/informed": None}
    )
    assert out.getvalue().startswith("step 1/2: 0% of groups differ in reward, ")


def test_a_step_has_one_line_with_its_own_numbers():
    out = io.StringIO()
    line = ProgressLine(Console(file=out, width=200))
    state = SimpleNamespace(global_step=1, max_steps=2, is_world_process_zero=True)
    scored = {"gear/scored": 8.0, "gear/divergence/mean": 0.4, "gear/segments/token_share": 0.3}
    line.on_log(None, state, None, {"reward": 0.5, "frac_reward_zero_std": 0.0, **scored})
    line.on_log(None, state, None, {"eval_reward": 0.75, "eval_pass@1": 1.0})
    state.global_step = 2
    line.on_log(None, state, None, {"reward": 0.0, "frac_reward_zero_std": 1.0, "gear/scored": 0.0})
    line.on_log(None, state, None, {"train_runtime": 2.0})
    one, held_out, two = out.getvalue().splitlines()
    numbers = "reward 0.50, 100% of groups differ in reward, 8 completions scored, 30% of tokens in segments"
    assert one.startswith(f"step 1/2: {numbers}, KL 0.40, ") and one.endswith(" left")
    assert held_out == "after step 1: held out 0.75, pass@1 1.00"
    assert two.startswith("step 2/2: reward 0.00, 0% of groups differ in reward, 0 completions scored, ")
    assert "KL" not in two and "segments" not in two


def test_an_evaluation_before_the_first_step_does_not_count_in_the_pace(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    out = io.StringIO()
    line = ProgressLine(Console(file=out, width=200))
    state = SimpleNamespace(global_step=4, max_steps=20, is_world_process_zero=True)
    line.on_train_begin(None, state, None)
    now[0] = 600.0  # the evaluation
    for step in (4, 5):
        state.global_step = step
        line.on_step_begin(None, state, None)
        now[0] += 10.0
        state.global_step += 1
        line.on_log(None, state, None, {"reward": 0.5, "frac_reward_zero_std": 0.0})
    assert (
        "step 6/20: reward 0.50, 100% of groups differ in reward, 10.0 s a step, 0:02:20 left"
        in out.getvalue()
    )
