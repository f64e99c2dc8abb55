"""What `gear init --like verl` prints, as printed: its files train on unmodified verl."""

import subprocess
import sys
from pathlib import Path

from verl_cpu.harness import MACHINE, run

GEAR = [sys.executable, "-c", "from gear_rl.cli import main; main()"]


def test_the_printed_commands_train(tmp_path: Path):
    mine = tmp_path / "mine"
    subprocess.run([*GEAR, "init", "mine", "--like", "verl"], cwd=tmp_path, check=True)
    export = "export verl --config run.yaml --out verl --gpus 1"
    subprocess.run([*GEAR, *export.split()], cwd=mine, check=True)
    cpu = [*MACHINE, "trainer.total_training_steps=2", "+ray_kwargs.ray_init.num_gpus=1"]
    done = run(mine, ["bash", "verl/launch.sh", *cpu], {}, steps=2)
    assert sum(done.column("gear/scored")) > 0 and sum(done.column("gear/fallbacks")) == 0
    assert (mine / "runs/first/records.jsonl").stat().st_size > 0
