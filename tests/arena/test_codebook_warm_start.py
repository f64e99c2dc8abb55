"""The warm start repeats itself to the byte; the shipped student errs as its table says, its teacher hardly."""

import hashlib
import itertools
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from gear_rl.arena import model
from gear_rl.arena.codebook import check as codebook_check
from gear_rl.arena.codebook import problem as codebook
from gear_rl.arena.codebook import recipe
from gear_rl.arena.codebook.book import SYMBOLS
from gear_rl.arena.codebook.tiers import TIERS, Tier
from gear_rl.arena.evaluate import sample
from gear_rl.arena.task import get_task

torch.set_num_threads(1)
TINY = recipe.Recipe(steps=2, short_steps=1, grow_steps=1, fall_steps=1, settle_steps=2, batch_tokens=300)


@pytest.fixture(scope="module")
def loaded() -> tuple[Any, Any]:
    return model.load(task="codebook")


@pytest.fixture(scope="module")
def facts(loaded: tuple[Any, Any]) -> dict[str, Any]:
    return codebook_check.check(*loaded, n=16, tiers=["default"])["default"]


def _digest(folder: Path) -> dict[str, str]:
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(folder.iterdir())}


def test_build_repeats_itself_to_the_byte(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seeds: list[int] = []
    generate = codebook.generate

    def spy(seed: int, tier: str | Tier = "default") -> codebook.Problem:
        seeds.append(seed)
        return generate(seed, tier)

    monkeypatch.setattr(codebook, "generate", spy)
    task, state = get_task("codebook"), torch.random.get_rng_state()
    first, again = (
        _digest(task.build(tmp_path / name, seed=0, recipe=TINY, progress=False)) for name in ("a", "b")
    )
    assert "model.safetensors" in first
    assert first == again
    assert torch.equal(torch.random.get_rng_state(), state)
    # The shipped tokenizer is the one seed 0 makes: the checkpoint is not older than the code.
    assert first["tokenizer.json"] == _digest(task.checkpoint)["tokenizer.json"]
    assert seeds and not any(seed in codebook.HELD_OUT for seed in seeds), "never a held-out problem"


def test_a_demonstration_follows_the_reference_of_its_own_problem_only() -> None:
    rng = random.Random(0)
    kinds = {"none": 0, "trace": 0, "shuffled": 0}
    for prompt, completion in (recipe._conversation(rng, 5, recipe.Recipe()) for _ in range(200)):
        question, _, shown = prompt["content"].partition("\nref ")
        symbols = [word for word in question.split() if word[0].isupper()]
        codes = codebook.wanted(completion["content"])
        assert [*codes] == symbols
        seen = codebook.wanted(shown)
        kinds["none" if not shown else "trace" if symbols == [*seen] else "shuffled"] += 1
        if symbols == [*seen]:
            assert codes == seen
        else:
            assert not set(symbols) & set(seen)
            assert all(code in recipe.HABITS[symbol] for symbol, code in codes.items())
    assert kinds["none"] > kinds["trace"] > kinds["shuffled"] > 0


def test_the_student_errs_as_its_table_says(facts: dict[str, Any]) -> None:
    habits = facts["habits"]
    assert habits["symbols"] == 64
    assert habits["correlation"] > 0.95
    assert habits["mean_gap"] < 0.06
    assert habits["lowest"] < 0.25 and habits["highest"] > 0.8
    assert 0.25 < habits["wrong_on_top"] < 0.5


def test_the_reference_informs_and_another_one_does_not(facts: dict[str, Any]) -> None:
    assert 0.4 < facts["sampled"] < 0.65
    assert facts["sampled_trace"] > 0.9
    assert facts["sampled_shuffled"] < 0.65
    assert facts["reward"] == facts["sampled"]


def test_signals_rank_wrong_codes(facts: dict[str, Any]) -> None:
    on_policy, planted = facts["on_policy"], facts["planted"]
    assert planted["n"] == 16
    assert on_policy["n"] == round((1 - facts["sampled"]) * 16 * 12)
    for found in (on_policy, planted):
        assert found["auc_choices"]["log_ratio"] > 0.95
        assert abs(found["auc_choices"]["shuffled_log_ratio"] - 0.5) < 0.25
        assert found["auc"]["entropy"] > found["auc_choices"]["entropy"], (
            "entropy finds choices, not mistakes"
        )


@pytest.mark.parametrize(("tier", "least"), [("default", 0.97), ("hard", 0.97), ("words", 0.9)])
def test_the_student_keeps_the_form(loaded: tuple[Any, Any], tier: str, least: float) -> None:
    """The prompt's symbols, and as many words between two as it has dots: left to learn are the codes."""
    rows, gap = codebook.rows(tier, num=8, first_seed=0), 2 + TIERS[tier].filler
    texts = sample(*loaded, rows, max_new_tokens=codebook_check.MAX_NEW_TOKENS)
    taken, places = 0, list[int]()
    for text, row in zip(texts, rows, strict=True):
        taken += len([*codebook.decisions(text, row["answer"])])
        symbols = [i for i, word in enumerate(text.split()) if word in SYMBOLS]
        places += [later - one for one, later in itertools.pairwise(symbols)]
    assert taken >= least * 8 * TIERS[tier].symbols
    assert places.count(gap) >= 0.95 * len(places)


def test_the_tables_have_a_row_for_every_fact(facts: dict[str, Any]) -> None:
    tables = get_task("codebook").tables({"default": facts, "easy": facts})
    assert [len(table.rows) for table in tables] == [2, 1, 8]
    assert all(len(row) == len(table.columns) for table in tables for row in table.rows)
