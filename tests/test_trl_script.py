"""TRL's own GRPO script, with our names in the place of its trainer's and its configuration's."""

import json
import runpy
import sys
from pathlib import Path

import pytest
import trl.scripts.grpo

from gear_rl.runs.tiny_model import save_tiny_model
from support.commands import untouched

OPTIONS = """
    --model_name_or_path model --dataset_name rows --reward_funcs rewards.right --output_dir out --max_steps 2
    --per_device_train_batch_size 8 --num_generations 4 --max_completion_length 8 --logging_steps 1
    --use_peft --lora_r 4 --lora_dropout 0 --lora_target_modules q_proj v_proj
    --use_cpu true --bf16 false --gradient_checkpointing false --report_to none
    --teacher_model_kind base --record_file records.jsonl
"""


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_trls_own_script_trains_with_our_names(tmp_path, monkeypatch):
    script = Path(trl.scripts.grpo.__file__).read_text(encoding="utf-8")
    ours = "from gear_rl import GEARConfig, GEARTrainer\n" + script.replace(
        "= GRPOTrainer(", "= GEARTrainer("
    )
    ours = ours.replace("(GRPOScriptArguments, GRPOConfig,", "(GRPOScriptArguments, GEARConfig,")
    assert ours.count("= GEARTrainer(") == ours.count(", GEARConfig,") == 1
    (tmp_path / "script.py").write_text(ours, encoding="utf-8")
    save_tiny_model(tmp_path / "model")
    rows = [{"prompt": f"{n} + 1 =", "solution": f"{n} + 1 = {n + 1}"} for n in range(16)]
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "rewards.py").write_text(
        "def right(completions, **_):\n    return [float(len(c) % 2) for c in completions]"
    )
    monkeypatch.setattr(sys, "argv", ["script.py", *OPTIONS.split()])
    with untouched(tmp_path):
        runpy.run_path("script.py", run_name="__main__")
    assert (tmp_path / "out" / "adapter_config.json").is_file()
    assert len((tmp_path / "out" / "records.jsonl").read_text().splitlines()) == 16
