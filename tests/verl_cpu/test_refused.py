"""What verl's own command says of a run with token credit that cannot work: one line, and no Ray."""

import subprocess
import sys
from pathlib import Path

import pytest

RAW = ["trainer.v1.trainer_mode=gear_sync", "+gear.credit=gear", "+gear.teacher=live"]
REFUSED = {
    "gear.alhpa: no such setting of method 'gear'": [*RAW, "+gear.alhpa=1"],
    "trainer.v1.trainer_mode: 'sync' does not assign token credit": ["+gear.credit=gear"],
    "actor_rollout_ref.actor.strategy: 'megatron'": [*RAW, "actor_rollout_ref.actor.strategy=megatron"],
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_run_ends_with_one_line_before_ray_starts(message: str, tmp_path: Path):
    command = [sys.executable, "-m", "verl.trainer.main_ppo", *REFUSED[message]]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    said = done.stderr.strip().splitlines()
    assert done.returncode == 1 and said[-1].startswith(f"gear-rl: {message}"), done.stderr
    assert "Traceback" not in done.stderr and "Ray" not in done.stdout + done.stderr
