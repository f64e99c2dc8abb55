"""The shipped checkpoint of "ledger": small, careless alone, careful with a reference; a fault shows."""

from typing import Any

import pytest
import torch

from gear_rl.arena import model
from gear_rl.arena.calls import tokens
from gear_rl.arena.ledger import check as ledger_check
from gear_rl.arena.ledger import problem as ledger
from gear_rl.arena.ledger.episodes import episode, prompt_ids
from gear_rl.arena.task import Reference, all_tasks
from gear_rl.methods.gear import Gear

torch.set_num_threads(1)
Loaded = tuple[Any, Any]


@pytest.fixture(scope="module")
def loaded() -> Loaded:
    return model.load(task="ledger")


def test_the_checkpoints_are_small() -> None:
    sizes = {
        task.name: sum(file.stat().st_size for file in task.checkpoint.iterdir()) for task in all_tasks()
    }
    assert 1_000_000 < sizes["ledger"] < 2_500_000
    assert max(sizes.values()) < 5_000_000


def test_a_planted_fault_shows_where_it_is(loaded: Loaded) -> None:
    found = ledger_check.localisation(*loaded, "default", n=40, onset_of=Gear().onsets)
    fault = found["relation"]
    assert (fault["n"], found["argument"]["n"]) == (40, 40)
    assert fault["onset"] > 0.7
    assert fault["onset"] > fault["chance"] + 0.3
    assert fault["onset"] >= fault["shuffled_onset"]
    assert fault["auc"]["divergence"] > 0.9
    assert fault["log_ratio"] > 0.8


def test_localisation_says_when_there_are_too_few_problems(
    loaded: Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_check, "HELD_OUT", range(7))
    with pytest.raises(ValueError, match="n: 8 is not possible; faults fit into 7 held-out problems"):
        ledger_check.localisation(*loaded, "easy", n=8, onset_of=Gear().onsets)


def _choices(loaded: Loaded, reference: Reference, words: Any) -> list[float]:
    """The probability of the right tool in the look-ups whose word is among `words`, along gold episodes."""
    network, tokenizer = loaded
    found: list[float] = []
    for seed in range(40):
        problem = ledger.generate(seed)
        ids, mask = tokens(tokenizer, episode(problem).messages)
        context = ledger.privileged_context(problem, reference, seed)
        prompt = prompt_ids(tokenizer, problem, "default", context)
        with torch.no_grad():
            logits = network(torch.tensor([prompt + ids])).logits[0].log_softmax(-1)
        begins = [
            t
            for t, (token, before) in enumerate(zip(mask, [False, *mask], strict=False))
            if token and not before
        ]
        for word, begin in zip((*problem.source.words, *problem.target.words), begins, strict=False):
            if word in words:
                place = begin + 2  # after the mark of a call and the words before the tool's name
                found.append(logits[len(prompt) + place - 1, ids[place]].exp().item())
    return found


def test_the_student_misreads_aliases_and_the_teacher_does_not(loaded: Loaded) -> None:
    def mean(values: list[float]) -> float:
        assert len(values) >= 30
        return sum(values) / len(values)

    aliases, plain = set(ledger.ALIASES), set(ledger.RELATIONS)
    assert 0.25 < mean(_choices(loaded, "none", aliases)) < 0.6
    assert mean(_choices(loaded, "none", plain)) > 0.85
    assert mean(_choices(loaded, "trace", aliases)) > 0.9
    assert mean(_choices(loaded, "shuffled", aliases)) < 0.7
