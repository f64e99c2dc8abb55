"""The warm start runs from nothing, saves what `load` reads, and repeats itself to the byte."""

import contextlib
import hashlib
import io
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from gear_rl.arena import model
from gear_rl.arena.chain import problem as chain
from gear_rl.arena.chain import recipe
from gear_rl.arena.chain.tiers import Tier
from gear_rl.arena.task import get_task

TINY = recipe.Recipe(
    competence_steps=3,
    copy_steps=1,
    short_steps=1,
    grow_steps=1,
    fall_steps=1,
    habit_steps=2,
    batch_tokens=400,
    evaluate_every=5,
)


@dataclass(frozen=True, kw_only=True)
class Builds:
    silent: Path
    shown: Path
    """With its progress on the screen, and measured."""
    other: Path
    """Of another seed."""
    said: str
    seeds: list[int]
    """Problems that the silent build asked for."""


def _digest(folder: Path) -> dict[str, str]:
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(folder.iterdir())}


@pytest.fixture(scope="module")
def builds(tmp_path_factory: pytest.TempPathFactory) -> Builds:
    folder = tmp_path_factory.mktemp("builds")
    seeds: list[int] = []
    generate = chain.generate

    def spy(seed: int, tier: str | Tier = "default") -> chain.Problem:
        seeds.append(seed)
        return generate(seed, tier)

    threads, state = torch.get_num_threads(), torch.random.get_rng_state()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chain, "generate", spy)
        silent = recipe.build_chain(folder / "a", seed=0, recipe=TINY, progress=False)
    with contextlib.redirect_stdout(io.StringIO()) as said:
        shown = recipe.build_chain(folder / "b", seed=0, recipe=TINY)
    other = recipe.build_chain(folder / "c", seed=4, recipe=TINY, progress=False)
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.random.get_rng_state(), state)
    return Builds(silent=silent, shown=shown, other=other, said=said.getvalue(), seeds=seeds)


def test_build_repeats_itself_to_the_byte_shown_or_not(builds: Builds) -> None:
    first = _digest(builds.silent)
    assert "model.safetensors" in first
    assert first == _digest(builds.shown)
    assert first["model.safetensors"] != _digest(builds.other)["model.safetensors"]
    network, tokenizer = model.load(builds.silent)
    assert tokenizer.decode(tokenizer("37 +8 = 45")["input_ids"]) == "37 +8 = 45"
    assert network.config.vocab_size >= len(tokenizer)


def test_progress_shows_loss_and_accuracy(builds: Builds) -> None:
    assert "5/5" in builds.said and "loss" in builds.said and "accuracy" in builds.said


def test_the_tokenizer_comes_out_as_shipped(builds: Builds) -> None:
    """The shipped tokenizer is the one seed 0 makes: the checkpoint is not older than the code."""
    assert _digest(builds.silent)["tokenizer.json"] == _digest(get_task("chain").checkpoint)["tokenizer.json"]


def test_training_problems_are_never_held_out(builds: Builds) -> None:
    # Only the progress report asks for held-out rows, and the silent build shows none.
    assert builds.seeds and not any(seed in chain.HELD_OUT for seed in builds.seeds)
