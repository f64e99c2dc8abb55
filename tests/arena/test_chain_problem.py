"""The task "chain": the arithmetic, exactly one planted fault, an exact reward, and the truth by hand."""

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gear_rl.arena.chain import TASK
from gear_rl.arena.chain import problem as chain
from gear_rl.arena.chain.problem import TIERS
from gear_rl.arena.model import EOS, load

tiers = st.sampled_from(sorted(TIERS))
seeds = st.integers(0, 1 << 40)


@given(seed=seeds, tier=tiers)
def test_the_trace_is_the_arithmetic(seed: int, tier: str) -> None:
    problem = chain.generate(seed, tier)
    *steps, last = problem.solve()[0].split(" ; ")
    value, counted = problem.start, []
    for step in steps:
        left, operation, equals, right = step.split()
        assert (int(left), equals) == (value, "=")
        amount = int(operation[1:])
        value = {"+": value + amount, "-": value - amount, "x": value * amount}[operation[0]] % 100
        assert int(right) == value
        counted.append(operation)
    assert last == f"ans {value:02d}" == f"ans {problem.answer}"
    prompt = problem.text.split()
    assert counted == [op for before, op in itertools.pairwise(prompt) if "skip" not in (op, before)]
    fewest, most = TIERS[tier].steps
    assert fewest <= len(counted) <= most
    assert len(set(problem.operations)) == len(problem.operations)
    assert chain.read(problem.text) == problem


def test_a_planted_step_never_heals() -> None:
    """Off by fifty, then doubled."""
    problem = chain.Problem(37, ("+8", "x2"), (False, False))
    planted = [problem.plant(seed)[0] for seed in range(2000)]
    assert chain.chain_reward(planted, [problem.answer] * 2000) == [0.0] * 2000


@pytest.mark.parametrize(
    "completion", ["45", "ans 5", "ans 45 ;", "ans 45 46", "ans 4\uff15", "ans __import__('os')", ""]
)
def test_only_the_exact_final_answer_counts(completion: str) -> None:
    assert chain.chain_reward([completion, "ans 45"], ["45", "45"]) == [0.0, 1.0]


def test_truth_by_hand() -> None:
    tokenizer: Any = load()[1]
    row = {"prompt": [{"role": "user", "content": "37 +8 skip x2 x3"}]}
    right = tokenizer("37 +8 = 45 ; 45 x3 = 35 ; ans 35" + EOS)["input_ids"]
    facts = chain.truth(right, row, tokenizer)
    assert facts.decision == [*range(len(right))] and all(facts.right)
    misread = tokenizer("37 +8 = 45 ; 45 x2 = 90 ; 90 x3 = 70 ; ans 70" + EOS)["input_ids"]
    facts = chain.truth(misread, row, tokenizer)
    [wrong] = [t for t, number in enumerate(facts.decision) if number >= 0 and not facts.right[t]]
    assert tokenizer.decode(misread[: wrong + 1]).endswith("45 x2 = "), "the operation that was cancelled"
    assert tokenizer.decode([facts.right_id[wrong]]).strip().startswith("x3")
    assert set(facts.decision[wrong + 1 :]) == {-1}


@pytest.mark.parametrize("tier", sorted(TIERS))
def test_the_truth_knows_the_planted_faults(tier: str) -> None:
    tokenizer: Any = load()[1]
    for case in TASK.cases(tokenizer, tier, 16):
        facts = chain.truth(case.faulty[0], case.row, tokenizer)
        wrong = [t for t, number in enumerate(facts.decision) if number >= 0 and not facts.right[t]]
        assert wrong == [*case.fault]
        assert case.choices[case.fault.start], "the result of a step"
        assert sum(case.choices) == case.row["privileged_context"].count("=")
