"""The truth of a task that pays one right completion: by hand, and on planted faults."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gear_rl.arena.chain import problem as chain
from gear_rl.arena.model import EOS, load
from gear_rl.arena.task import TruthOf, get_task
from gear_rl.arena.truth import Truth, only_right

IDS = st.lists(st.integers(0, 3), max_size=8)
every_tier = pytest.mark.parametrize("tier", ["easy", "default", "hard"])


def truth_and_tokenizer(name: str, tier: str) -> tuple[TruthOf, Any]:
    truth = get_task(name).truth_of(tier)
    assert truth is not None
    return truth, load(task=name)[1]


def wrong_of(facts: Truth) -> list[int]:
    """The decisions that were taken wrongly."""
    return [t for t, number in enumerate(facts.decision) if number >= 0 and not facts.right[t]]


@given(ids=IDS, gold=IDS)
def test_it_ends_with_the_first_departure(ids: list[int], gold: list[int]) -> None:
    facts = only_right(ids, gold)
    taken = [t for t, number in enumerate(facts.decision) if number >= 0]
    assert [facts.decision[t] for t in taken] == [*range(len(taken))], "in the order they are written"
    assert all(facts.right_id[t] == gold[t] for t in taken)
    wrong = [t for t in range(min(len(ids), len(gold))) if ids[t] != gold[t]]
    before = min(wrong, default=min(len(ids), len(gold)))
    assert [*range(before)] == [t for t in taken if facts.right[t]]
    assert all(t <= before for t in taken)
    assert facts.num_decisions == len(gold) and facts.exact and not any(facts.lost)
    assert len(facts.decision) == len(facts.right) == len(facts.right_id) == len(facts.lost) == len(ids)


def test_a_chain_by_hand() -> None:
    truth, tokenizer = truth_and_tokenizer("chain", "hard")
    row = {"prompt": [{"role": "user", "content": "37 +8 skip x2 x3"}]}
    right = tokenizer("37 +8 = 45 ; 45 x3 = 35 ; ans 35" + EOS)["input_ids"]
    facts = truth(right, row, tokenizer)
    assert facts.decision == tuple(range(len(right))) and all(facts.right)
    misread = tokenizer("37 +8 = 45 ; 45 x2 = 90 ; 90 x3 = 70 ; ans 70" + EOS)["input_ids"]
    facts = truth(misread, row, tokenizer)
    [wrong] = wrong_of(facts)
    assert tokenizer.decode(misread[: wrong + 1]).endswith("45 x2 = "), "the operation that was cancelled"
    assert tokenizer.decode([facts.right_id[wrong]]).strip().startswith("x3")
    assert set(facts.decision[wrong + 1 :]) == {-1}


@every_tier
def test_the_truth_of_a_chain_knows_its_planted_faults(tier: str) -> None:
    truth, tokenizer = truth_and_tokenizer("chain", tier)
    for seed, row in enumerate(get_task("chain").rows(tier, num=16, first_seed=0)):
        assert chain.read(row["prompt"][-1]["content"]) == chain.generate(seed, tier)
        planted = chain.plant(chain.generate(seed, tier), seed)
        ids = tokenizer(planted.completion + EOS)["input_ids"]
        assert wrong_of(truth(ids, row, tokenizer)) == [planted.token]
