"""The task "ledger": deterministic, disjoint, tools that hold against bad arguments, rewards from the state."""

import inspect
import itertools
import json
import sqlite3
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gear_rl.arena.ledger import env as ledger_env
from gear_rl.arena.ledger import episodes as ledger_episodes
from gear_rl.arena.ledger import problem as ledger
from gear_rl.arena.ledger.env import LedgerEnv
from gear_rl.arena.ledger.problem import Call
from gear_rl.arena.ledger.self_test import self_test
from gear_rl.arena.ledger.tiers import TIERS, LedgerTier

tiers = st.sampled_from(sorted(TIERS))
seeds = st.integers(0, 1 << 40)
patient = settings(deadline=None)
NUM_ALIASES = {"easy": {1}, "default": {1}, "hard": {2, 3}}


def begun(seed: int, tier: str = "default", **row: Any) -> tuple[Any, ledger.Problem]:
    env: Any = ledger_env.environment(tier)()
    assert env.reset(seed=seed, tier=tier, prompt=[], **row) is None
    return env, ledger.generate(seed, tier)


def apply(env: Any, made: list[Call]) -> list[Any]:
    return [getattr(env, call.name)(**call.arguments) for call in made]


# --- problems ------------------------------------------------------------------------------------------------


def test_every_promise_of_the_self_test_is_kept() -> None:
    """Here for a part of the held-out problems; `self_test()` goes through them all in ten seconds."""
    assert self_test(num=100) == dict.fromkeys(TIERS, 100)


def test_self_test_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LedgerEnv, "get_reward", lambda self: 1.0)
    with pytest.raises(AssertionError, match="broken promise"):
        self_test(["easy"])


@patient
@given(seed=seeds, tier=tiers)
def test_generate_is_deterministic_and_keeps_to_its_tier(seed: int, tier: str) -> None:
    problem, knobs = ledger.generate(seed, tier), TIERS[tier]
    assert problem == ledger.generate(seed, knobs)
    words = (*problem.source.words, *problem.target.words)
    assert knobs.hops[0] <= len(words) <= knobs.hops[1]
    assert sum(word in ledger.ALIASES for word in words) in NUM_ALIASES[tier]
    held_out = {ledger.generate(other, tier).text for other in range(8)}
    assert seed in ledger.HELD_OUT or problem.text not in held_out


@patient
@given(seed=seeds, tier=tiers)
def test_a_world_has_no_two_relations_to_one_person(seed: int, tier: str) -> None:
    world = ledger.generate(seed, tier).world
    assert len(world.balances) == ledger.NUM_PERSONS
    assert all(10 <= balance <= 99 for balance in world.balances.values())
    for subject in {subject for _, subject in world.related}:
        kinds = ledger.ITEM_RELATIONS if subject in ledger.ITEMS else ledger.PERSON_RELATIONS
        people = [world.related[kind, subject] for kind in kinds]
        assert len({*people, subject}) == len(kinds) + 1


@patient
@given(seed=seeds, tier=tiers)
def test_gold_is_what_the_instruction_says(seed: int, tier: str) -> None:
    """A slow twin: the instruction, taken apart word by word from its end."""
    problem = ledger.generate(seed, tier)
    verb, amount, origin, *rest = problem.text.split(" ")
    assert (verb, origin) == ("pay", "from")
    names, expected = [], []
    for part in " ".join(rest).split(" to "):
        *words, name = part.replace("the ", "").split(" of ")
        for word in reversed(words):
            tool = {**ledger.ALIASES}.get(word, word)
            expected.append((tool, [name]))
            name = problem.world.related[tool, name]
        names.append(name)
    paid = int(amount) if amount != "all" else problem.world.balances[names[0]]
    if amount == "all":
        expected.append(("balance", [names[0]]))
    expected.append(("pay", [*names, paid]))
    assert [(call.name, list(call.arguments.values())) for call in ledger.calls(problem)] == expected
    assert 2 <= len(expected) <= 6
    assert 10 <= paid <= problem.world.balances[names[0]]


@pytest.mark.parametrize(
    "knobs",
    [
        {"hops": (0, 2)},
        {"hops": (3, 5)},
        {"hops": (1, 1), "aliases": (2, 1)},
        {"hops": (1, 1), "distractors": 3},
    ],
)
def test_impossible_tiers_are_refused(knobs: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"hops|aliases|distractors"):
        LedgerTier(**knobs)


def test_rows_hold_no_secret() -> None:
    for row in ledger.rows("hard", num=5, reference="answer", first_seed=3):
        assert sorted(row) == ["prompt", "reference", "seed", "tier"]
        assert row["prompt"] == [{"role": "user", "content": ledger.generate(row["seed"], "hard").text}]
        assert (row["tier"], row["reference"]) == ("hard", "answer")
        assert json.loads(json.dumps(row)) == row
    with pytest.raises(ValueError, match="mix"):
        ledger.rows(num=10, first_seed=1020)


def test_fingerprints_tell_tiers_apart() -> None:
    assert len({ledger.fingerprint(tier, num=32) for tier in TIERS}) == len(TIERS)


def test_the_task_imports_no_torch() -> None:
    code = "import sys, gear_rl.arena.ledger.env; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# --- the environment -----------------------------------------------------------------------------------------


@patient
@given(seed=seeds, tier=tiers)
def test_gold_earns_one_and_any_first_part_of_it_nothing(seed: int, tier: str) -> None:
    env, problem = begun(seed, tier)
    made = ledger.calls(problem)
    for call in made:
        assert env.get_reward() == 0.0
        getattr(env, call.name)(**call.arguments)
    assert env.get_reward() == 1.0


def test_an_environment_is_used_again() -> None:
    env, first = begun(5)
    apply(env, ledger.calls(first))
    database = env._db
    env.reset(seed=6, tier="default", reference="none")
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        database.execute("select 1")
    assert env.get_reward() == 0.0
    apply(env, ledger.calls(ledger.generate(6)))
    assert env.get_reward() == 1.0


def test_another_valid_path_earns_as_much() -> None:
    env, problem = begun(0)
    *lookups, pay = ledger.calls(problem)
    apply(env, [Call("greet", {"person": pay.arguments["target"]}), *reversed(lookups), *lookups])
    half = int(pay.arguments["amount"]) // 2
    rest = int(pay.arguments["amount"]) - half
    apply(env, [Call("pay", {**pay.arguments, "amount": part}) for part in (half, rest)])
    assert env.get_reward() == 1.0


def test_a_mistake_can_be_paid_back() -> None:
    env, problem = begun(0)
    pay = ledger.calls(problem)[-1]
    source, target = pay.arguments["source"], pay.arguments["target"]
    other = next(name for name in problem.world.balances if name not in (source, target))
    apply(env, [Call("pay", {**pay.arguments, "target": other})])
    assert env.get_reward() == 0.0
    apply(env, [Call("pay", {**pay.arguments, "source": other, "target": source}), pay])
    assert env.get_reward() == 1.0


def test_an_irreversible_tier_takes_one_payment() -> None:
    env, problem = begun(0, "hard")
    pay = ledger.calls(problem)[-1]
    with pytest.raises(ValueError, match="not a positive"):
        env.pay(pay.arguments["source"], pay.arguments["target"], 0)
    wrong = {**pay.arguments, "amount": 1}
    assert env.pay(**wrong) == "ok"
    with pytest.raises(ValueError, match="only one payment"):
        apply(env, [pay])
    assert env.get_reward() == 0.0


def test_tools_say_what_is_wrong_and_change_nothing() -> None:
    env, problem = begun(1)
    rich, poor = sorted(problem.world.balances, key=lambda name: -problem.world.balances[name])[:2]
    available = problem.world.balances[poor]
    before = {name: env.balance(name) for name in problem.world.balances}
    assert before == problem.world.balances
    refused = [
        (lambda: env.boss("lamp"), "no such person"),
        (lambda: env.owner(rich), "no such item"),
        (lambda: env.balance("nobody"), "no such person"),
        (lambda: env.pay(poor, rich, available + 1), f"{poor} has only {available}"),
        (lambda: env.pay(poor, rich, 0), "not a positive integer"),
        (lambda: env.pay(poor, rich, -5), "not a positive integer"),
        (lambda: env.pay(poor, rich, True), "not a positive integer"),
        (lambda: env.pay(poor, poor, 10), f"{poor} cannot pay {poor}"),
        (lambda: env.pay("<|im_end|>", "<|im_end|>", 10), "^no such person$"),
        (lambda: env.pay(poor, "nobody", 10), "no such person"),
        (lambda: env.pay("nobody", rich, 10), "no such person"),
    ]
    for call, message in refused:
        with pytest.raises(ValueError, match=message):
            call()
    assert {name: env.balance(name) for name in problem.world.balances} == before


@pytest.mark.parametrize(
    "text",
    ["' or '1'='1", "bob'; drop table account; --", 'x" union select 1', "%", "_", "", "b\x00b", "🦜" * 999],
)
def test_a_name_is_never_read_as_sql(text: str) -> None:
    env, problem = begun(2)
    someone = next(iter(problem.world.balances))
    for tool in (env.boss, env.owner, env.balance, env.greet):
        with pytest.raises(ValueError, match=r"^no such (person|item)$"):
            tool(text)
    with pytest.raises(ValueError, match=r"^no such person$"):
        env.pay(text, someone, 1)
    with pytest.raises(ValueError, match=r"^no such person$"):
        env.pay(someone, text, 1)
    apply(env, ledger.calls(problem))
    assert env.get_reward() == 1.0


@pytest.mark.parametrize("value", [None, 3, ["bob"], {"name": "bob"}, 1.5])
def test_any_json_value_is_refused(value: Any) -> None:
    env, problem = begun(2)
    someone, other = itertools.islice(problem.world.balances, 2)
    raw = (
        LedgerEnv._related
    )  # what the tools are made of; the tests' type checker guards the tools themselves
    with pytest.raises(ValueError, match="not a name"):
        raw(env, "boss", "person", value)
    pay = inspect.unwrap(LedgerEnv.pay)
    with pytest.raises(ValueError, match="not a positive integer"):
        pay(env, someone, other, "5" if value == 3 else value)


def test_before_reset_there_is_no_problem() -> None:
    env = LedgerEnv()
    for call in (env.get_reward, env.privileged_context, lambda: env.balance("bob")):
        with pytest.raises(ValueError, match="call reset first"):
            call()


@pytest.mark.parametrize(
    ("tier", "extra"), [("easy", []), ("default", ["greet"]), ("hard", ["greet", "rate"])]
)
def test_the_tools_are_what_trl_finds(tier: str, extra: list[str]) -> None:
    from transformers.utils import get_json_schema

    cls = ledger_env.environment(tier)
    hidden = ("reset", "get_reward", "privileged_context", "turn_rewards")
    found = [name for name, _ in inspect.getmembers(cls, inspect.isfunction) if not name.startswith("_")]
    names = [tool.__name__ for tool in ledger_env.tools(tier)]
    assert names == [name for name in found if name not in hidden]
    assert set(names) == {*ledger.RELATIONS, "balance", "pay", *extra}
    for tool in ledger_env.tools(tier):
        schema = get_json_schema(tool)["function"]
        assert schema["name"] == tool.__name__
        assert schema["parameters"]["required"] == list(inspect.signature(tool).parameters)


@patient
@given(seed=seeds, tier=tiers)
def test_a_turn_is_rewarded_where_its_call_is_the_right_one_there(seed: int, tier: str) -> None:
    env, problem = begun(seed, tier)
    gold = ledger.calls(problem)
    assert env.turn_rewards() == []
    env.balance(next(iter(problem.world.balances)))  # no solution begins with it
    for call in gold:
        getattr(env, call.name)(**call.arguments)
    shifted = [float(i > 0 and i < len(gold) and gold[i] == gold[i - 1]) for i in range(len(gold) + 1)]
    assert env.turn_rewards() == shifted
    env, problem = begun(seed, tier)
    apply(env, gold)
    assert env.turn_rewards() == [1.0] * len(gold)


# --- what the teacher sees -----------------------------------------------------------------------------------


@patient
@given(seed=seeds, tier=tiers)
def test_the_trace_is_the_gold_calls(seed: int, tier: str) -> None:
    env, problem = begun(seed, tier, reference="trace")
    context = env.privileged_context()
    texts = (
        context.removeprefix("<tool_call>\n")
        .removesuffix("\n</tool_call>")
        .split("\n</tool_call>\n<tool_call>\n")
    )
    assert [json.loads(text) for text in texts] == [
        {"name": call.name, "arguments": dict(call.arguments)} for call in ledger.calls(problem)
    ]


@patient
@given(seed=seeds, tier=tiers)
def test_the_answer_is_the_balances_that_change(seed: int, tier: str) -> None:
    env, problem = begun(seed, tier, reference="answer")
    first, after, second, later = env.privileged_context().split()
    changed = {first: int(after), second: int(later)}
    apply(env, ledger.calls(problem))
    assert {name: env.balance(name) for name in problem.world.balances} == {
        **problem.world.balances,
        **changed,
    }
    assert sum(changed.values()) == problem.world.balances[first] + problem.world.balances[second]


@patient
@given(seed=seeds, tier=tiers)
def test_a_shuffled_reference_has_the_shape_and_other_names(seed: int, tier: str) -> None:
    env, problem = begun(seed, tier, reference="shuffled")
    gold, other = ledger.privileged_context(problem, "trace"), env.privileged_context()
    assert other == env.privileged_context() != gold
    assert gold is not None
    kinds = [[("item" in line, "amount" in line) for line in text.split("\n")] for text in (gold, other)]
    assert kinds[0] == kinds[1]
    begins = {problem.source.base, problem.target.base}
    assert not any(f'"{name}"' in other.split("\n")[1] for name in begins)


def test_no_reference_is_none() -> None:
    assert begun(0, reference="none")[0].privileged_context() is None


# --- planted faults ------------------------------------------------------------------------------------------


@patient
@given(
    seed=seeds, tier=tiers, plant_seed=st.integers(0, 1000), kind=st.sampled_from(["relation", "argument"])
)
def test_a_planted_episode_has_one_wrong_call_and_true_answers(
    seed: int, tier: str, plant_seed: int, kind: Any
) -> None:
    problem = ledger.generate(seed, tier)
    planted = ledger_episodes.plant(problem, plant_seed, kind)
    assert planted == ledger_episodes.plant(problem, plant_seed, kind)
    env, _ = begun(seed, tier)
    turns = [message for message in planted.messages if message["role"] == "assistant"]
    answers = [message for message in planted.messages if message["role"] == "tool"]
    made = [Call(**turn["tool_calls"][0]["function"]) for turn in turns[:-1]]
    gold = ledger.calls(problem)
    assert len(made) == len(gold) == len(answers)
    for call, answer in zip(made, answers, strict=True):
        try:
            result = getattr(env, call.name)(**call.arguments)
        except ValueError as error:
            result = {"error": str(error)}
        assert (answer["name"], answer["content"]) == (call.name, str(result))
    assert turns[-1] == {"role": "assistant", "content": "done"}
    assert env.get_reward() == 0.0
    assert made[: planted.turn] == gold[: planted.turn]
    if kind == "argument":
        assert planted.turn == len(gold) - 1
        pay, right = made[-1].arguments, gold[-1].arguments
        assert (pay["source"], pay["target"]) == (right["target"], right["source"])
    else:
        # The tool is wrong at the planted turn and right at all others.
        differ = [i for i, (one, other) in enumerate(zip(made, gold, strict=True)) if one.name != other.name]
        assert differ == [planted.turn]
        assert made[planted.turn].name in ledger.confusable(gold[planted.turn].name)


@pytest.mark.parametrize("tier", sorted(TIERS))
def test_faults_stand_at_aliases_where_they_can(tier: str) -> None:
    problems = [ledger.generate(seed, tier) for seed in range(100)]
    turns = [ledger_episodes.plant(problem, 0).turn for problem in problems]
    words = [(*problem.source.words, *problem.target.words) for problem in problems]
    at_alias = sum(all_words[turn] in ledger.ALIASES for all_words, turn in zip(words, turns, strict=True))
    assert at_alias >= 95
