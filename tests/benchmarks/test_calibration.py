"""python -m benchmarks calibration: real steps of both methods, and a model that is fitted on one of them."""

import json

import pytest

from benchmarks import calibration as module
from benchmarks.calibration import Shape, calibrate
from gear_rl.errors import InputError
from gear_rl.lab.plan import Architecture, Device, Rates, Step, seconds
from gear_rl.runs.machine import quiet_libraries
from gear_rl.runs.smoke import alternating_reward
from support.commands import benchmark, gear, untouched

TINY = Shape(hidden=64, layers=1, rollouts=8, tokens=6, vocab=1024)


@pytest.fixture(scope="module")
def found():
    with untouched(None):
        quiet_libraries()
        longer = Shape(hidden=64, layers=1, rollouts=16, tokens=9, vocab=1024)
        return calibrate(fitted=TINY, checked=(longer,), steps=2, repeats=1)


def test_both_methods_were_trained_and_gear_scored(found):
    for row, tokens in zip(found["shapes"], (6, 9), strict=True):
        assert row["measured"]["grpo"] > row["measured"]["generation"] > 0
        assert row["measured"]["update"] > 0
        # The plan is told what the engine did: the teacher's prompt holds the solution, so it is longer.
        assert row["teacher_prompt"] > row["prompt"] > 5
        assert f"x {tokens} tokens" in row["shape"]


def test_the_error_is_that_of_the_shapes_that_were_not_fitted(found):
    row = found["shapes"][1]
    for name, error in row["error"].items():
        # Both sides are rounded to milliseconds in the file.
        assert error == pytest.approx(row["predicted"][name] / row["measured"][name] - 1, abs=1e-3)
    assert found["error_step"] == max(abs(row["error"]["grpo"]), abs(row["error"]["gear"]))
    assert found["error_ratio"] == abs(row["error"]["ratio"])


@pytest.mark.parametrize("student_pass", [False, True])
def test_the_fit_gives_the_measured_parts_back(student_pass):
    arch = Architecture(hidden=8, layers=2, heads=2, kv_heads=1, head_dim=4, ffn=16, vocab=32, tied=True)
    step = Step(
        prompts=1, prompt=50, teacher_prompt=70, tokens=4, student_pass=student_pass, old_logprob=False
    )
    device = Device(flops=1e9, bandwidth=1e8, memory_gib=0, weight_bytes=4)
    measured = {"generation": 0.02, "update": 0.03, "credit": 0.01}
    rates = module._fitted(measured, seconds(arch, step, device, Rates(forward=1, train=1, head=1, decode=1)))
    parts = module.predicted_parts(arch, step, device, rates)
    assert parts["generation"] == pytest.approx(0.02) and parts["update"] == pytest.approx(0.03)
    assert parts["teacher"] + parts["signals"] + parts["student"] == pytest.approx(0.01)


def test_a_credit_pass_below_the_noise_still_gives_shares():
    bare = {"generation": 1.0, "update": 1.0, "teacher": 1.0, "signals": 1.0, "student": 0.0}
    rates = module._fitted({"generation": 1.0, "update": 1.0, "credit": -0.5}, bare)
    assert rates.forward == pytest.approx(200.0)


def test_every_group_has_spread():
    assert alternating_reward([""] * 4) == [0.0, 1.0, 0.0, 1.0]


def test_too_few_steps_are_refused():
    with pytest.raises(InputError, match="give 2 steps or more"):
        calibrate(steps=1)


def test_the_command_writes_what_the_plan_then_tells(tmp_path, monkeypatch):
    result = {
        "what": "x", "gflops": 1.0, "gbytes_per_second": 1.0, "shares": {"forward": 0.5}, "steps": 2,
        "repeats": 1, "shapes": [], "error_step": 0.25, "error_ratio": 0.07,
    }  # fmt: skip
    monkeypatch.setattr(module, "calibrate", lambda **options: result)
    file = tmp_path / "calibration.json"
    done = benchmark("calibration", "--out", str(file), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(file.read_text())["machine"]
    done = gear("plan", "--calibration", str(file), cwd=tmp_path)
    told = " ".join(done.stdout.split())  # a narrow terminal folds the lines
    assert "off by up to 25% in the seconds of a step and 7% in GEAR over GRPO" in told
    done = gear("plan", cwd=tmp_path)
    assert "has not been checked" in " ".join(done.stdout.split())
    file.write_text("{}")
    done = gear("plan", "--calibration", str(file))
    assert done.returncode == 2 and "is no result of `python -m benchmarks calibration" in done.stderr
