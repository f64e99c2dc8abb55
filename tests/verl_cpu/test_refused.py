"""What verl's own command says of a run with token credit that cannot work: one line, and no Ray."""

import subprocess
import sys
from pathlib import Path

import pytest

RAW = ["trainer.v1.trainer_mode=gear_sync", "+gear.credit=gear", "+gear.teacher=live"]
REFUSED = {
    r"gear.alhpa: no such setting of method 'gear'": [*RAW, "+gear.alhpa=1"],
    r"gear.credit: no method 'geer'; did you mean gear?": [RAW[0], "+gear.credit=geer"],
    "trainer.v1.trainer_mode: 'sync' does not assign token credit": ["+gear.credit=gear"],
    "gear.credit: 'opsd' adds a distillation term": [RAW[0], "+gear.credit=opsd"],
    "gear.teacher: 'ema'": [*RAW[:2], "+gear.teacher=ema"],
    "actor_rollout_ref.actor.strategy: 'megatron'": [*RAW, "actor_rollout_ref.actor.strategy=megatron"],
    "trainer.v1.trainer_mode: 'separate_async'": ["+gear=gear", "trainer.v1.trainer_mode=separate_async"],
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_run_ends_with_one_line_before_ray_starts(message: str, tmp_path: Path):
    command = [sys.executable, "-m", "verl.trainer.main_ppo", *REFUSED[message]]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    said = done.stderr.strip().splitlines()
    assert done.returncode == 1 and said[-1].startswith(f"gear-rl: {message}"), done.stderr
    assert "Traceback" not in done.stderr and "Ray" not in done.stdout + done.stderr
