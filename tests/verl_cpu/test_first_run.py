"""What `gear init --like verl` prints, as printed: its files train on unmodified verl."""

import subprocess
import sys
from pathlib import Path

import pytest

from gear_rl.runs.model_wheels import kept_folder
from verl_cpu.harness import ACTOR, MACHINE, ROLLOUT, run

GEAR = [sys.executable, "-c", "from gear_rl.cli import main; main()"]
VOWELS = (
    "def score(completions, **columns):\n"
    "    return [float(sum(map(messages[-1]['content'].count, 'aeiou'))) for messages in completions]\n"
)
SMALL = "--model smollm2 --per_device_train_batch_size 8 --num_generations 4 --max_completion_length 32"
IN_ONE_PIECE = f"{ROLLOUT}.checkpoint_engine.update_weights_bucket_megabytes=1024"
"""vLLM refuses a head that is tied to embeddings of an earlier part."""


def test_the_printed_commands_train(tmp_path: Path):
    trains(tmp_path, "", [], steps=2)


@pytest.mark.lm
def test_the_printed_commands_train_a_pretrained_model(tmp_path: Path):
    if kept_folder() is None:
        pytest.skip("no pretrained model on this machine; make test-lm fetches one")
    micro = [f"{ACTOR}.ppo_micro_batch_size_per_gpu=8", f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu=8"]
    trains(tmp_path, SMALL, [*micro, IN_ONE_PIECE], steps=1)


def trains(folder: Path, words: str, overrides: list[str], *, steps: int) -> None:
    mine = folder / "mine"
    subprocess.run([*GEAR, "init", "mine", "--like", "verl"], cwd=folder, check=True)
    if words:  # the starter's reward needs the arena's own model
        (mine / "reward.py").write_text(VOWELS, encoding="utf-8")
    export = f"export verl --config run.yaml --out verl --gpus 1 {words}"
    subprocess.run([*GEAR, *export.split()], cwd=mine, check=True)
    cpu = [*MACHINE, *overrides, f"trainer.total_training_steps={steps}", "+ray_kwargs.ray_init.num_gpus=1"]
    done = run(mine, ["bash", "verl/launch.sh", *cpu], {}, steps=steps)
    assert sum(done.column("gear/scored")) > 0 and sum(done.column("gear/fallbacks")) == 0
    assert (mine / "runs/first/records.jsonl").stat().st_size > 0
