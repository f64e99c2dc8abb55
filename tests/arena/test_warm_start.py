"""The warm start runs from nothing, saves what `load` reads, and repeats itself to the byte."""

import hashlib
from pathlib import Path

import pytest
import torch

from gear_rl.arena import model
from gear_rl.arena.chain import problem as chain
from gear_rl.arena.chain import recipe
from gear_rl.arena.chain.tiers import Tier
from gear_rl.arena.task import get_task

TINY = recipe.Recipe(
    competence_steps=7,
    copy_steps=2,
    short_steps=2,
    grow_steps=1,
    fall_steps=2,
    habit_steps=3,
    batch_tokens=400,
    evaluate_every=10,
)


def _digest(folder: Path) -> dict[str, str]:
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(folder.iterdir())}


def test_build_repeats_itself_to_the_byte(tmp_path: Path) -> None:
    threads, state = torch.get_num_threads(), torch.random.get_rng_state()
    first = _digest(recipe.build_chain(tmp_path / "a", seed=3, recipe=TINY, progress=False))
    assert "model.safetensors" in first
    assert first == _digest(recipe.build_chain(tmp_path / "b", seed=3, recipe=TINY, progress=False))
    other = _digest(recipe.build_chain(tmp_path / "c", seed=4, recipe=TINY, progress=False))
    assert first["model.safetensors"] != other["model.safetensors"]
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.random.get_rng_state(), state)
    network, tokenizer = model.load(tmp_path / "a")
    assert tokenizer.decode(tokenizer("37 +8 = 45")["input_ids"]) == "37 +8 = 45"
    assert network.config.vocab_size >= len(tokenizer)


def test_progress_shows_loss_and_accuracy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe.build_chain(tmp_path, recipe=TINY)
    shown = capsys.readouterr().out
    assert "10/10" in shown and "loss" in shown and "accuracy" in shown


def test_the_tokenizer_comes_out_as_shipped(tmp_path: Path) -> None:
    """The shipped tokenizer is the one seed 0 makes: the checkpoint is not older than the code."""
    recipe.build_chain(tmp_path, seed=0, recipe=TINY, progress=False)
    assert _digest(tmp_path)["tokenizer.json"] == _digest(get_task("chain").checkpoint)["tokenizer.json"]


def test_training_problems_are_never_held_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seeds: list[int] = []
    generate = chain.generate

    def spy(seed: int, tier: str | Tier = "default") -> chain.Problem:
        seeds.append(seed)
        return generate(seed, tier)

    monkeypatch.setattr(chain, "generate", spy)
    recipe.build_chain(tmp_path, recipe=TINY, progress=False)
    # Only the progress report asks for held-out rows, and it is not shown here.
    assert seeds and not any(seed in chain.HELD_OUT for seed in seeds)
