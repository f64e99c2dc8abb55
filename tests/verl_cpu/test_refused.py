"""What verl's own command says of a run with token credit that cannot work: one line, and no Ray."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from gear_rl.credit.distillation import anchor_penalty
from gear_rl.traits import Anchor

REFUSED = {
    "gear.alhpa: no such setting of method 'gear'": [
        "trainer.v1.trainer_mode=gear_sync",
        "+gear.credit=gear",
        "+gear.teacher=live",
        "+gear.alhpa=1",
    ],
    "trainer.v1.trainer_mode: 'sync' does not assign token credit": ["+gear.credit=gear"],
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_run_ends_with_one_line_before_ray_starts(message: str, tmp_path: Path):
    command = [sys.executable, "-m", "verl.trainer.main_ppo", *REFUSED[message]]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    said = done.stderr.strip().splitlines()
    assert done.returncode == 1 and said[-1].startswith(f"gear-rl: {message}"), done.stderr
    assert "Traceback" not in done.stderr and "Ray" not in done.stdout + done.stderr


@pytest.mark.parametrize(("theirs", "ours", "least"), [("mse", "urkl", 0.0), ("low_var_kl", "ufkl", 1.0)])
def test_the_anchor_that_is_refused_is_a_loss_of_verls(theirs: str, ours: Anchor, least: float):
    from verl.trainer.ppo.core_algos import kl_penalty

    now, then = torch.tensor([[-1.0, -2.0], [-0.5, -3.0]]), torch.tensor([[-1.5, -0.5], [-0.5, -2.0]])
    penalty = anchor_penalty((now - then).flatten(), ours).reshape(2, 2)
    torch.testing.assert_close(kl_penalty(now, then, theirs), penalty - least)
