"""gear plan: the table, and bad input."""

import json

import pytest

from support.commands import gear


def test_json_on_the_standard_output_is_json_alone():
    assert json.loads(gear("plan", "--json").stdout)["model"] == "Qwen/Qwen3-4B"


def test_the_plan_says_what_is_assumed_and_what_it_cannot_know():
    done = gear("plan", "--gpus", "1", "--calibration", "none.json")
    assert "Assumed, not measured: these shares of the data sheet: forward 0.50" in done.stdout
    assert "communication between GPUs" in done.stdout and "does not fit" in done.stdout
    assert "GEAR takes 1.071 of GRPO's step" in done.stdout
    smaller = gear("plan", "--gpus", "8", "--calibration", "none.json").stdout
    assert "fits with a tenth to spare" in smaller and "a student pass for the signals" not in smaller
    assert "a student pass for the signals" in gear("plan", "--student-pass").stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--gpu", "tpu"], "gpu: 'tpu' is not one of"),
        (["--model", "no/such"], "no folder with a config.json"),
        (["--tokens", "0"], "tokens: 0; give 1 or more"),
    ],
)
def test_bad_input_is_one_line(words, message):
    done = gear("plan", *words)
    assert done.returncode == 2 and message in done.stderr and "Traceback" not in done.stderr
    assert done.stdout == ""
