"""reasoning-gym's rows and scores, and that no scorer evaluates what the model wrote."""

import ast
import itertools
import json
import re
from pathlib import Path

import pytest

from gear_rl.data.adapters.reasoning_gym import (
    EVALUATE_FORMULAS,
    EVALUATE_LITERALS,
    generator,
    is_safe_answer,
    reasoning_gym_reward,
    rows,
)

reasoning_gym = pytest.importorskip("reasoning_gym")


def test_rows_are_the_generators_entries_carried_through_json():
    # Tuples, keys that are no text, and plain ones.
    for name in ("knights_knaves", "n_queens", "gsm_symbolic"):
        entries = list(generator(name, 3, 5))
        found = rows(name, num=3, seed=5)
        assert [ast.literal_eval(json.loads(row["reasoning_gym"])["entry"]) for row in found] == entries
        assert [row["prompt"][0]["content"] for row in found] == [entry["question"] for entry in entries]


def test_the_teacher_sees_the_worked_solution_where_there_is_one():
    assert rows("basic_arithmetic", num=1, seed=3)[0]["privileged_context"] == "( 56 + -33 ) - 84 = -61"
    assert "28 x 4 = 112 bananas" in rows("gsm_symbolic", num=1, seed=3)[0]["privileged_context"]


@pytest.mark.parametrize("settings", [{"allow_negation": True}, {"min_terms": 1, "max_terms": 1}])
def test_the_solution_of_a_sum_ends_in_its_answer_and_is_right_for_the_reward(settings):
    found = rows("chain_sum", num=20, seed=1, **settings)
    packs = [row["reasoning_gym"] for row in found]
    assert reasoning_gym_reward([row["solution"] for row in found], reasoning_gym=packs) == [1.0] * 20
    for row in found:
        steps = row["privileged_context"].rstrip(".").split(". ")
        if "=" in steps[-1]:
            assert steps[-1].endswith(f"= {row['answer']}")
        for before, after in itertools.pairwise(steps):
            assert before.split()[-1] == after.split()[0]


def test_the_held_out_part_shares_no_question_with_the_rest():
    def questions(num, held_out):
        made = rows("products", num=num, seed=0, held_out=held_out, max_digits=1)
        return {row["prompt"][0]["content"] for row in made}

    train, kept = questions(60, False), questions(20, True)
    assert len(train) > 20 and len(kept) > 2 and not train & kept


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("chain_sums", {}, r"no generator 'chain_sums'; it has .*chain_sum,"),
        # One problem exists, and it is not held out.
        ("count_bits", {"held_out": True, "min_n": 1, "max_n": 1}, "only 0 of 1 problems found"),
    ],
)
def test_a_generator_that_gives_no_rows_is_named(name, settings, message):
    with pytest.raises(ValueError, match=message):
        rows(name, num=1, **settings)


def test_code_in_an_answer_is_refused_and_counted(tmp_path, caplog):
    attack = f"__import__('pathlib').Path({str(tmp_path / 'pwned')!r}).touch()"
    names = sorted(EVALUATE_LITERALS | EVALUATE_FORMULAS)
    packs = [rows(name, num=1, seed=3)[0]["reasoning_gym"] for name in names]
    metrics = {}
    found = reasoning_gym_reward([attack] * 9, reasoning_gym=packs, log_metric=metrics.__setitem__)
    assert found == [0.0] * 9
    assert metrics["reasoning_gym_reward/refused"] == 9.0
    assert "of 9 answers 9 refused" in caplog.text
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize(
    ("name", "answer", "allowed"),
    [
        ("countdown", "(1.5*.5)/2.", True),
        ("countdown", "x.a", False),
        ("countdown", "1 .real", False),
        ("countdown", "exec(x)", False),
        ("simple_integration", "-9*x**8/10 + 3*x**4/2 + C", True),
        ("intermediate_integration", "exp(x)*sin(2*x) - acosh(x) + C", True),
        ("n_queens", "Q _\n_ Q", True),
        ("spiral_matrix", "[f()]", False),
        ("spiral_matrix", "[" * 10_000, False),
    ],
)
def test_the_grammar(name, answer, allowed):
    assert is_safe_answer(name, answer) == allowed


def test_the_list_of_scorers_that_evaluate_is_complete():
    root = Path(reasoning_gym.__file__).parent
    found = {
        str(path.relative_to(root))
        for path in root.rglob("*.py")
        if re.search(r"\b(?:eval|exec|parse_expr|sympify)\(", path.read_text(encoding="utf-8"))
    }
    ours = {Path(name).stem for name in found} & (EVALUATE_LITERALS | EVALUATE_FORMULAS)
    assert ours == EVALUATE_LITERALS | EVALUATE_FORMULAS
    assert {Path(name).stem for name in found} - ours == {
        # These evaluate the generator's own text, or define a function of that name.
        "basic_arithmetic",
        "bitwise_arithmetic",
        "codeio",
        "generators_00_49",
        "generators_50_99",
        "number_sorting",
        "propositional_logic",
    }
