"""The task: deterministic, disjoint, exactly one planted fault, exact rewards."""

import itertools
import random
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gear_rl.arena.chain import problem as chain
from gear_rl.arena.chain.self_test import self_test
from gear_rl.arena.chain.tiers import TIERS, Tier

tiers = st.sampled_from(sorted(TIERS))
seeds = st.integers(0, 1 << 40)


def test_self_test_covers_every_held_out_problem() -> None:
    assert self_test() == dict.fromkeys(TIERS, 1024)


def test_self_test_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chain, "correct", lambda completion, answer: True)
    with pytest.raises(AssertionError, match="broken promise"):
        self_test(["easy"])


@given(seed=seeds, tier=tiers)
def test_the_trace_is_the_arithmetic(seed: int, tier: str) -> None:
    problem = chain.generate(seed, tier)
    *steps, last = chain.solve(problem).trace.split(" ; ")
    value, counted = problem.start, []
    for step in steps:
        left, operation, equals, right = step.split()
        assert (int(left), equals) == (value, "=")
        amount = int(operation[1:])
        value = {"+": value + amount, "-": value - amount, "x": value * amount}[operation[0]] % 100
        assert int(right) == value
        counted.append(operation)
    assert last == f"ans {value:02d}"
    prompt = problem.text.split()
    live = [op for before, op in itertools.pairwise(prompt) if op != "skip" and before != "skip"]
    assert counted == live
    fewest, most = TIERS[tier].steps
    assert fewest <= len(counted) <= most


@given(seed=seeds, tier=tiers)
def test_generate_is_deterministic_and_respects_the_split(seed: int, tier: str) -> None:
    problem = chain.generate(seed, tier)
    assert problem == chain.generate(seed, tier)
    assert len(set(problem.operations)) == len(problem.operations)
    held_out = {chain.generate(s, tier).text for s in range(64)}
    assert seed in chain.HELD_OUT or problem.text not in held_out


@given(seed=seeds, tier=tiers, plant_seed=st.integers(0, 1000))
def test_plant_makes_exactly_one_wrong_step(seed: int, tier: str, plant_seed: int) -> None:
    problem = chain.generate(seed, tier)
    planted = chain.plant(problem, plant_seed)
    wrong = []
    for i, step in enumerate(planted.completion.split(" ; ")[:-1]):
        left, operation, _, right = step.split()
        if chain.apply(int(left), operation) != int(right):
            wrong.append(i)
    assert wrong == [planted.step]
    gold = chain.solve(problem)
    assert planted.completion[: planted.char] == gold.trace[: planted.char]
    assert planted.completion[planted.char : planted.char + 2] != gold.trace[planted.char : planted.char + 2]
    assert chain.chain_reward([planted.completion], [gold.answer]) == [0.0]
    assert planted.answer == gold.answer


def test_slipped_errs_at_its_rate() -> None:
    rng = random.Random(0)
    problem = chain.generate(5000, "hard")
    steps = [s.split() for _ in range(400) for s in chain.slipped(problem, rng, 0.25).split(" ; ")[:-1]]
    share = sum(chain.apply(int(left), op) != int(right) for left, op, _, right in steps) / len(steps)
    assert abs(share - 0.25) < 0.03


@pytest.mark.parametrize(
    "completion", ["45", "ans 5", "ans 45 ;", "ans 45 46", "ans 4\uff15", "ans __import__('os')", ""]
)
def test_only_the_exact_final_answer_counts(completion: str) -> None:
    assert not chain.correct(completion, "45")


def test_reference_levels() -> None:
    problem = chain.generate(3)
    gold = chain.solve(problem)
    assert chain.privileged_context(problem, "none") is None
    assert chain.privileged_context(problem, "trace") == gold.trace
    assert chain.privileged_context(problem, "answer") == f"ans {gold.answer}"
    shuffled = chain.privileged_context(problem, "shuffled", seed=7)
    assert shuffled is not None and shuffled != gold.trace and len(shuffled) == len(gold.trace)
    assert chain.render(problem, "trace")[0]["content"] == f"{problem.text}\nref {gold.trace}"


def test_rows_keep_the_privileged_context_out_of_the_prompt() -> None:
    for row, seed in zip(chain.rows("hard", num=5, first_seed=0), range(5), strict=True):
        assert row["prompt"] == [{"role": "user", "content": chain.generate(seed, "hard").text}]
        assert row["privileged_context"].endswith(f"ans {row['answer']}")


def test_rows_refuse_to_mix_the_splits() -> None:
    with pytest.raises(ValueError, match="mix"):
        chain.rows(num=10, first_seed=1020)


@pytest.mark.parametrize(
    "settings", [{"steps": (0, 2)}, {"steps": (3, 2)}, {"steps": (10, 20), "cancelled": (0, 1)}]
)
def test_impossible_tiers_are_refused(settings: dict[str, tuple[int, int]]) -> None:
    with pytest.raises(ValueError, match="steps"):
        Tier(**settings)


def test_fingerprints_tell_tiers_apart() -> None:
    prints = {chain.fingerprint(tier) for tier in TIERS}
    assert len(prints) == len(TIERS)
    assert chain.fingerprint("easy") == chain.fingerprint(TIERS["easy"])


def test_the_task_imports_no_torch() -> None:
    code = (
        "import sys, gear_rl.arena.chain; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
