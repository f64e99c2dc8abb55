"""The task: deterministic, disjoint, one planted fault, a reward that counts what stands there."""

import itertools
import random
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gear_rl.arena.codebook import book
from gear_rl.arena.codebook import problem as codebook
from gear_rl.arena.codebook.problem import Problem
from gear_rl.arena.codebook.self_test import self_test
from gear_rl.arena.codebook.tiers import BUDGETS, TIERS, Tier

tiers = st.sampled_from(sorted(TIERS))
seeds = st.integers(0, 1 << 40)
ANSWER = "Ka 12 Bo 34 Mi 56 Fe 78"
WORDS = ("Ka", "Bo", "Mi", "Fe", "Ha", "12", "34", "56", "78", "99", "1", "345", "so", "codes")


def test_self_test_passes_every_held_out_problem() -> None:
    assert self_test(["easy", "exact"]) == dict.fromkeys(["easy", "exact"], 1024)


def test_self_test_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codebook, "mistake", lambda symbol, rng: book.RIGHT[symbol])
    with pytest.raises(AssertionError, match="broken promise in tier 'easy', seed 0"):
        self_test(["easy"])


@pytest.mark.parametrize(
    ("completion", "right"),
    [
        ("codes Ka 12 Bo 34 Mi 56 Fe 78", 4),
        ("codes Ka 12 hm so Bo 34 also and Mi 56 now then Fe 78", 4),
        ("codes Fe 78 Ka 12", 2),  # the order is free, what is left out is wrong
        ("codes Ka 34 Bo 12 Mi 65 Fe 78", 1),
        ("codes Ka 99 Ka 12", 0),  # what is written first counts
        ("codes Ka 12 Ka 99", 1),
        ("codes Ha 12 Ka 12", 1),  # a symbol that was not to be looked up
        ("Ka 12", 1),
        ("codes Ka hm 12 Bo: 34 Mi  56", 0),  # the code comes right after its symbol
        ("codes Ka 123 Bo 3 xKa 12", 0),
        ("codes Ka \u0661\u0662", 0),
        ("12 34 56 78", 0),
        ("", 0),
    ],
)
def test_the_reward_is_the_share_that_is_right(completion: str, right: int) -> None:
    assert codebook.share_right(completion, ANSWER) == right / 4
    assert codebook.codebook_reward([completion], [ANSWER]) == [right / 4]
    assert codebook.codebook_reward([completion], [f"all {ANSWER}"]) == [float(right == 4)]
    assert codebook.exact_reward([completion], [ANSWER]) == [float(right == 4)]


@given(words=st.lists(st.sampled_from(WORDS), max_size=13))
def test_decisions_are_those_that_a_walk_over_the_words_finds(words: list[str]) -> None:
    given_codes, taken = dict(zip(("Ka", "Bo", "Mi", "Fe"), ("12", "34", "56", "78"), strict=True)), []
    open_symbols = [*given_codes]
    for symbol, code in itertools.pairwise(words):
        if symbol in open_symbols and len(code) == 2 and code.isdigit():
            open_symbols.remove(symbol)
            taken.append(([*given_codes].index(symbol), code, code == given_codes[symbol]))
    text = " ".join(words)
    found = [(d.index, text[d.start : d.end], d.right) for d in codebook.decisions(text, ANSWER)]
    assert found == taken


@given(seed=seeds, tier=tiers)
def test_generate_is_deterministic_and_respects_the_split(seed: int, tier: str) -> None:
    problem = codebook.generate(seed, tier)
    assert problem == codebook.generate(seed, tier)
    assert len(set(problem.symbols)) == len(problem.symbols) == TIERS[tier].symbols
    held_out = {codebook.generate(s, tier).text for s in range(8)}
    assert seed in codebook.HELD_OUT or problem.text not in held_out


@given(seed=seeds, tier=tiers)
def test_the_trace_lists_prompt_codes_and_filler(seed: int, tier: str) -> None:
    problem, settings = codebook.generate(seed, tier), TIERS[tier]
    lead, *words = codebook.solve(problem).trace.split()
    assert (lead, *words[:: 2 + settings.filler]) == ("codes", *problem.symbols)
    assert words[1 :: 2 + settings.filler] == [book.RIGHT[symbol] for symbol in problem.symbols]
    assert problem.text.split() == ["codes", *["."] * settings.filler, *problem.symbols]
    # With the closing token this is what the budget must leave room for.
    assert settings.num_tokens == len(words) + 2 <= BUDGETS[tier].max_completion_tokens
    irrelevant = [word for i, word in enumerate(words) if i % (2 + settings.filler) > 1]
    assert len(irrelevant) == settings.filler * (settings.symbols - 1) and set(irrelevant) <= set(book.FILLER)


@given(seed=seeds, tier=tiers, plant_seed=st.integers(0, 1000))
def test_plant_makes_exactly_one_wrong_code(seed: int, tier: str, plant_seed: int) -> None:
    problem = codebook.generate(seed, tier)
    planted = codebook.plant(problem, plant_seed)
    gold = codebook.solve(problem)
    pairs = zip(planted.completion.split(), gold.trace.split(), strict=True)
    changed = [i for i, (one, other) in enumerate(pairs) if one != other]
    assert changed == [2 + planted.decision * (2 + TIERS[tier].filler)]
    symbol = problem.symbols[planted.decision]
    assert planted.completion.split()[changed[0]] in book.HABITS[symbol]


def test_the_table_of_habits() -> None:
    assert len(book.SYMBOLS) == 64 == len(set(book.RIGHT.values()))
    shares = [habit[book.RIGHT[symbol]] for symbol, habit in book.HABITS.items()]
    assert (min(shares), max(shares)) == pytest.approx((0.15, 0.9))
    assert sum(shares) / 64 == pytest.approx(0.525)
    for symbol, habit in book.HABITS.items():
        assert sum(habit.values()) == pytest.approx(1.0) and len(habit) == 4
        likeliest = max(habit, key=habit.__getitem__)
        # 0.8 of the mistakes are one code: it leads where 0.8 (1 - p) > p.
        assert (likeliest == book.RIGHT[symbol]) == (habit[book.RIGHT[symbol]] > 4 / 9)
    assert sum(share < 4 / 9 for share in shares) == 25


def test_mistakes_are_drawn_as_the_student_errs() -> None:
    rng = random.Random(0)
    drawn = [codebook.mistake("Ka", rng) for _ in range(2000)]
    _, favourite, second, third = book.HABITS["Ka"]
    assert set(drawn) == {favourite, second, third}
    assert drawn.count(favourite) / 2000 == pytest.approx(0.8, abs=0.03)


def test_reference_levels() -> None:
    problem = codebook.generate(3, "words")
    gold = codebook.solve(problem)
    assert codebook.privileged_context(problem, "none") is None
    assert codebook.privileged_context(problem, "trace") == gold.trace
    answer = codebook.privileged_context(problem, "answer")
    assert answer == " ".join(["codes", *(book.RIGHT[symbol] for symbol in problem.symbols)])
    shuffled = codebook.privileged_context(problem, "shuffled", seed=7)
    assert shuffled is not None and shuffled != codebook.privileged_context(problem, "shuffled", seed=8)
    assert len(shuffled.split()) == len(gold.trace.split())
    assert not set(problem.symbols) & set(shuffled.split())
    assert codebook.render(problem, shuffled)[0]["content"] == f"{problem.text}\nref {shuffled}"


def test_another_problem_is_left_for_the_longest() -> None:
    problem = codebook.generate(0, Tier(symbols=32))
    shuffled = codebook.privileged_context(problem, "shuffled")
    assert set(shuffled.split()[1::2]) == set(book.SYMBOLS) - set(problem.symbols)  # type: ignore[union-attr]


def test_rows_keep_the_privileged_context_out_of_the_prompt() -> None:
    for row, seed in zip(codebook.rows("exact", num=5, first_seed=0), range(5), strict=True):
        assert row["prompt"] == [{"role": "user", "content": codebook.generate(seed, "exact").text}]
        assert row["answer"] == f"all {row['privileged_context'].removeprefix('codes ')}"


def test_rows_refuse_to_mix_the_splits() -> None:
    with pytest.raises(ValueError, match="mix"):
        codebook.rows(num=10, first_seed=1020)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"symbols": 0}, "symbols: 0 is not from 1 to 32"),
        ({"symbols": 33}, "symbols: 33 is not from 1 to 32"),
        ({"symbols": 4, "filler": -1}, "filler: -1 is not from 0 to 3"),
        ({"symbols": 4, "filler": 4}, "filler: 4 is not from 0 to 3"),
    ],
)
def test_impossible_tiers_are_refused(settings: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Tier(**settings)


def test_one_symbol_has_no_gap() -> None:
    assert codebook.write(Problem(("Ka",), ()), ["12"]) == "codes Ka 12"


def test_fingerprints_tell_tiers_apart() -> None:
    assert len({codebook.fingerprint(tier, 64) for tier in TIERS}) == len(TIERS)
    assert codebook.fingerprint("easy", 64) == codebook.fingerprint(TIERS["easy"], 64)


def test_the_task_imports_no_torch() -> None:
    code = "import sys, gear_rl.arena.codebook; sys.exit(bool({'torch', 'transformers'} & {*sys.modules}))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
