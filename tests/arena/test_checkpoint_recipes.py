"""The recipes of the checkpoints, in `tools/arena`: a few steps of each."""

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from gear_rl.arena.model import load
from gear_rl.arena.task import get_task
from tools.arena.__main__ import RECIPES
from tools.arena.recipe import build


def _digest(folder: Path) -> dict[str, str]:
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(folder.iterdir())}


@pytest.mark.parametrize("name", RECIPES)
def test_a_toy_checkpoint_repeats_itself_to_the_byte(name: str, tmp_path: Path) -> None:
    short = {"early_steps": 1, "drill_from": 1, "short_steps": 1, "grow_steps": 1, "fall_steps": 1}
    toy = replace(RECIPES[name], steps=3, settle_steps=2, draws=24, batch_tokens=600, **short)
    state, threads = torch.random.get_rng_state(), torch.get_num_threads()
    for folder in ("a", "b"):
        build(toy, tmp_path / folder, seed=0)
    assert torch.equal(torch.random.get_rng_state(), state) and torch.get_num_threads() == threads
    made = _digest(tmp_path / "a")
    assert made == _digest(tmp_path / "b")
    # The shipped tokenizer is the one that seed 0 makes: the checkpoint is not older than the code.
    assert made["tokenizer.json"] == _digest(get_task(name).checkpoint)["tokenizer.json"]
    assert load(tmp_path / "a")[0].config.vocab_size >= len(load(tmp_path / "a")[1])
