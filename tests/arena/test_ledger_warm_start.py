"""The warm start of the task "ledger": its demonstrations, and that it repeats itself to the byte."""

import hashlib
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from gear_rl.arena import model
from gear_rl.arena.ledger import problem as ledger
from gear_rl.arena.ledger import recipe as warm_start
from gear_rl.arena.ledger.recipe import LedgerRecipe, build_ledger
from gear_rl.arena.ledger.tiers import TIERS, LedgerTier
from gear_rl.arena.task import get_task

torch.set_num_threads(1)
TINY = LedgerRecipe(
    competence_steps=3,
    short_steps=1,
    grow_steps=1,
    fall_steps=1,
    habit_steps=3,
    batch_tokens=400,
    evaluate_every=3,
)
REFERENCES = ("none", "trace", "answer", "shuffled")


def _digest(folder: Path) -> dict[str, str]:
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(folder.iterdir())}


def test_build_repeats_itself_to_the_byte_and_measures_from_outside(tmp_path: Path, capsys: Any) -> None:
    state = torch.random.get_rng_state()
    torch.set_num_threads(2)  # what the build must hand back
    seen: list[bool] = []

    def measure(network: Any, tokenizer: Any) -> float:
        seen.append(network.config.vocab_size >= len(tokenizer))
        return 0.25

    first = build_ledger(tmp_path / "a", recipe=TINY, progress=False)
    second = build_ledger(tmp_path / "b", 0, recipe=TINY, measure=measure)
    assert seen == [True, True]  # 6 steps, every 3
    assert _digest(first) == _digest(second)
    assert _digest(first)["tokenizer.json"] == _digest(get_task("ledger").checkpoint)["tokenizer.json"]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    assert threads == 2
    assert torch.equal(torch.random.get_rng_state(), state)
    shown = capsys.readouterr().out
    assert "6/6" in shown and "accuracy 0.25" in shown
    network, tokenizer = model.load(first, task="ledger")
    assert {p.dtype for p in network.parameters()} == {torch.float32}
    assert tokenizer.decode(tokenizer("pay 37 from bob")["input_ids"]) == "pay 37 from bob"


def _drawn(reference: str, misread_rate: float, **changes: Any) -> list[tuple[Any, ledger.Problem]]:
    """Demonstrations of the hard tier with their problems."""
    rng = random.Random(0)
    weights = tuple(int(name == reference) for name in REFERENCES)
    found: list[tuple[Any, ledger.Problem]] = []
    problems: list[ledger.Problem] = []
    generate = ledger.generate

    def spy(seed: int, tier: str | LedgerTier = "default") -> ledger.Problem:
        assert seed not in ledger.HELD_OUT
        problems.append(generate(seed, tier))
        return problems[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ledger, "generate", spy)
        for _ in range(60):
            recipe = LedgerRecipe(**changes)
            made = warm_start._demonstration(rng, TIERS["hard"], weights, recipe, misread_rate)
            found.append((made, problems[-1]))
    return found


def _right(made: Any, problem: ledger.Problem) -> bool:
    return list(made.turns) == [*(call.text for call in ledger.calls(problem)), ledger.DONE]


@pytest.mark.parametrize("reference", ["none", "answer", "shuffled"])
def test_a_competent_demonstration_is_right(reference: str) -> None:
    drawn = _drawn(reference, 0.0, depart_rate=0.0)
    assert all(_right(made, problem) and made.departed is None for made, problem in drawn)
    assert all(("\nref " in made.content) == (reference != "none") for made, _ in drawn)


def test_a_referenced_demonstration_does_what_the_reference_does_right_or_wrong() -> None:
    drawn = _drawn("trace", 1.0, depart_rate=0.0)
    wrong = 0
    for made, problem in drawn:
        _, _, context = made.content.partition("\nref ")
        assert context == "\n".join(made.turns[:-1])
        wrong += not _right(made, problem)
    assert 20 <= wrong <= 55


def test_a_departure_is_one_wrong_relation_and_what_follows_from_it() -> None:
    for made, _ in _drawn("trace", 0.0, depart_rate=1.0):
        referenced = made.content.partition("\nref ")[2].split("</tool_call>\n")
        tools = [text.split('"')[3] for text in referenced]
        chosen = [turn.split('"')[3] for turn in made.turns[:-1]]
        assert [i for i, (one, other) in enumerate(zip(tools, chosen, strict=True)) if one != other] == [
            made.departed
        ]
        # The answer to a look-up is the argument of the next one, unless that begins with a new name.
        assert made.answers[made.departed] in made.turns[made.departed + 1] or made.departed + 1 < len(tools)


def test_the_habit_misreads_aliases_and_little_else() -> None:
    drawn = _drawn("none", 1.0, depart_rate=0.0, slip_rate=0.0)
    for made, problem in drawn:
        words = (*problem.source.words, *problem.target.words)
        gold = ledger.calls(problem)
        for word, right, turn in zip(words, gold, made.turns, strict=False):
            assert (turn.split('"')[3] == right.name) == (word in ledger.RELATIONS)
    assert all(_right(made, problem) for made, problem in _drawn("answer", 1.0, depart_rate=0.0))
