"""`--smoke`: which settings are swapped, and the errors of a recipe that does nothing."""

import json
from pathlib import Path

import pytest

from gear_rl.errors import InputError
from gear_rl.runs.run_config import RunConfig
from gear_rl.runs.smoke import SPREAD, smoke, swap_settings

ROWS = [{"q": f"{i} plus {i}", "a": str(2 * i)} for i in range(4)]


def recipe(**changes) -> RunConfig:
    own = {"model": "big/model", "dataset": "big/data", "columns": {"prompt": "q", "answer": "a"}}
    own |= {"reward": "think_format_reward", "smoke_rows": ROWS}
    config = RunConfig(**(own | {k: v for k, v in changes.items() if k in RunConfig.model_fields}))
    config.trainer = {k: v for k, v in changes.items() if k not in RunConfig.model_fields}
    return config


def test_costly_settings_are_swapped_and_the_others_are_kept(tmp_path):
    settings = {"use_vllm": True, "vllm_mode": "server", "teacher_model": "big/model"}
    kept = {"learning_rate": 3e-6, "epsilon_high": 0.28, "teacher_model_kind": "ema", "temperature": 0.7}
    more = {"reward_weights": [2.0], "record_file": "/runs/r.jsonl", "max_completion_length": 8192}
    own = {"held_out": 100, "lora": {"r": 64, "lora_alpha": 128}, "credit": {"name": "rlsd"}}
    config = recipe(**settings, **kept, **more, **own, output_dir="runs/x")
    small, swaps = swap_settings(config, tmp_path)
    assert small.columns == config.columns and small.credit == {"name": "rlsd"}
    assert kept.items() <= small.trainer.items()
    assert small.reward == ["think_format_reward", SPREAD] and small.trainer["reward_weights"] == [2.0, 1.0]
    assert small.lora == {"r": 4, "lora_alpha": 128}
    assert small.held_out == 1
    assert small.trainer["use_vllm"] is False
    assert not {"vllm_mode", "teacher_model"} & small.trainer.keys()
    assert small.trainer["max_completion_length"] == 32
    assert small.trainer["output_dir"].startswith(str(tmp_path))
    assert small.trainer["record_file"] == "records.jsonl"
    lines = Path(small.dataset).read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in lines] == ROWS, "raw rows, so that the columns are really mapped"
    assert "vllm_mode, teacher_model" in swaps["left out"]
    assert config.trainer["output_dir"] == "runs/x", "the recipe itself stays as it was"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"reward": "support.desk:silent"}, "reward: silent judged none of .* rows have .*answer"),
        (
            {"reward": "support.desk:broken"},
            r"reward: support.desk:broken raised KeyError: 'anwser' \(desk.py, line \d+\)",
        ),
        (
            {"environment": "support.desk:Mute", "reward": None, "columns": {"prompt": "q", "gold": "a"}},
            "credit: none of .* completions had a privileged context, so 'gear' did nothing",
        ),
        ({"smoke_rows": ROWS[:2]}, "smoke_rows: 2 rows are too few"),
    ],
)
def test_a_recipe_that_does_nothing_or_breaks_is_refused(changes, message):
    with pytest.raises(InputError, match=f"(?s){message}"):
        smoke(recipe(**{"reward": "support.desk:digits"} | changes))
