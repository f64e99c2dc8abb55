"""The warm start repeats itself to the byte; the shipped student errs as its table says, its teacher hardly."""

import hashlib
import random
import re
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from gear_rl.arena import model
from gear_rl.arena.calls import render_ids, tokens
from gear_rl.arena.errands import check as errands_check
from gear_rl.arena.errands import problem as errands
from gear_rl.arena.errands import recipe
from gear_rl.arena.errands.env import played, tools
from gear_rl.arena.errands.problem import HABITS, RIGHT
from gear_rl.arena.errands.tiers import Tier
from gear_rl.arena.errands.truth import truth
from gear_rl.arena.task import HELD_OUT, Instruments, Reference, get_task

torch.set_num_threads(1)
TINY = recipe.Recipe(
    copy_steps=1,
    steps=3,
    short_steps=1,
    grow_steps=1,
    fall_steps=2,
    settle_steps=2,
    draws=24,
    batch_tokens=450,
)


@pytest.fixture(scope="module")
def loaded() -> tuple[Any, Any]:
    return model.load(task="errands")


def _digest(folder: Path) -> dict[str, str]:
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(folder.iterdir())}


def test_build_repeats_itself_to_the_byte(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seeds: list[int] = []
    generate = errands.generate

    def spy(seed: int, tier: str | Tier = "default") -> errands.Problem:
        seeds.append(seed)
        return generate(seed, tier)

    monkeypatch.setattr(errands, "generate", spy)
    task, state = get_task("errands"), torch.random.get_rng_state()
    first, again = (
        _digest(task.build(tmp_path / name, seed=0, recipe=TINY, progress=False)) for name in ("a", "b")
    )
    assert "model.safetensors" in first
    assert first == again
    assert torch.equal(torch.random.get_rng_state(), state)
    # The shipped tokenizer is the one seed 0 makes: the checkpoint is not older than the code.
    assert first["tokenizer.json"] == _digest(task.checkpoint)["tokenizer.json"]
    assert seeds and not any(seed in HELD_OUT for seed in seeds), "never a held-out problem"


def test_a_demonstration_follows_the_reference_of_its_own_problem_only() -> None:
    rng, pair = random.Random(0), re.compile(r'"item": "(\w+)", "code": "(\d\d)"')
    kinds, waits, calls = {"none": 0, "trace": 0, "shuffled": 0}, 0, 0
    for _ in range(200):
        text, messages = recipe._demonstration(rng, 5, recipe.Recipe(), copying=False)
        question, _, shown = text.partition("\nref ")
        made = [m["tool_calls"][0]["function"] for m in messages if "tool_calls" in m]
        codes = {call["arguments"]["item"]: call["arguments"]["code"] for call in made if call["arguments"]}
        assert ["send", *codes] == question.split()
        waits, calls = waits + len(made) - len(codes), calls + len(codes)
        seen = dict(pair.findall(shown))
        kinds["none" if not shown else "trace" if [*codes] == [*seen] else "shuffled"] += 1
        if [*codes] == [*seen]:
            assert codes == seen
        else:
            assert not codes.keys() & seen.keys()
            assert all(code in HABITS[item] for item, code in codes.items())
    assert kinds["none"] > kinds["trace"] > kinds["shuffled"] > 0
    assert 0.1 < waits / calls < 0.2


def test_the_student_errs_as_its_table_says(loaded: tuple[Any, Any]) -> None:
    habits = errands_check.habits_learned(*loaded, 48)
    assert habits["symbols"] == 48
    assert habits["correlation"] > 0.95
    assert habits["mean_gap"] < 0.06
    assert habits["lowest"] < 0.25 and habits["highest"] > 0.8
    assert 0.25 < habits["wrong_on_top"] < 0.5


def _right_with(loaded: tuple[Any, Any], reference: Reference) -> float:
    """The mean probability of the right codes along right calls, shown a reference."""
    network, tokenizer = loaded
    found: list[float] = []
    for seed, row in enumerate(errands.rows(num=8, first_seed=0)):
        problem = errands.generate(seed)
        ids, _ = tokens(tokenizer, played(problem, errands.sends(problem)))
        context = errands.privileged_context(problem, reference, seed)
        prompt = render_ids(tokenizer, problem.text, tools(), context)
        with torch.no_grad():
            logits = network(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 :].softmax(-1)
        decided = truth(ids, row, tokenizer).decision
        found += [float(logits[t, ids[t]]) for t, decision in enumerate(decided) if decision >= 0]
    assert len(found) == 48
    return sum(found) / len(found)


def test_the_reference_informs_and_another_one_does_not(loaded: tuple[Any, Any]) -> None:
    assert 0.4 < _right_with(loaded, "none") < 0.65
    assert _right_with(loaded, "trace") > 0.9
    assert _right_with(loaded, "answer") < 0.65
    assert _right_with(loaded, "shuffled") < 0.65


class _Trainer:
    """Pays the share of a problem's right calls that its prompt shows; half where it shows none."""

    def solve(self, rows: Sequence[Mapping[str, Any]], *, greedy: bool, seed: int) -> list[float]:
        shown = [row["prompt"][0]["content"].partition("\nref ")[2] for row in rows]
        problems = [errands.generate(row["seed"], row["tier"]) for row in rows]
        return [
            sum(call.text in text for call in errands.sends(problem)) / len(problem.items) if text else 0.5
            for text, problem in zip(shown, problems, strict=True)
        ]


def test_check_measures_every_reference_and_ranks_planted_faults(loaded: tuple[Any, Any]) -> None:
    @contextmanager
    def trainer_of(network: Any, tokenizer: Any, tier: str) -> Generator[_Trainer]:
        yield _Trainer()

    instruments = Instruments(trainer_of=trainer_of, status=lambda text: nullcontext())
    task = get_task("errands")
    facts = task.check(*loaded, n=8, num_faults=8, tiers=["default"], instruments=instruments)
    shares = [facts["default"][f"sampled{name}"] for name in ("", "_trace", "_answer", "_shuffled")]
    assert shares == [0.5, 1.0, 0.0, 0.0]
    planted = facts["default"]["planted"]
    assert planted["n"] == 8
    assert planted["auc_choices"]["log_ratio"] > 0.95
    assert abs(planted["auc_choices"]["shuffled_log_ratio"] - 0.5) < 0.3
    assert planted["auc"]["entropy"] > planted["auc_choices"]["entropy"], (
        "entropy finds choices, not mistakes"
    )
    tables = task.tables(facts)
    assert [len(table.rows) for table in tables] == [1, 1, 2]
    assert all(len(row) == len(table.columns) for table in tables for row in table.rows)


def test_the_student_keeps_the_form(loaded: tuple[Any, Any]) -> None:
    """Along right calls all but the codes is certain, save for the choice to wait: codes are left to learn."""
    network, tokenizer = loaded
    [row] = errands.rows("hard", num=1, first_seed=0)
    problem = errands.generate(0, "hard")
    ids, own = tokens(tokenizer, played(problem, errands.sends(problem)))
    prompt = render_ids(tokenizer, problem.text, tools())
    with torch.no_grad():
        logits = network(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 :].softmax(-1)
    decided = truth(ids, row, tokenizer).decision
    assert [errands.RIGHT[item] for item in problem.items] == [
        tokenizer.decode([ids[t]]) for t, decision in enumerate(decided) if decision >= 0
    ]
    send = tokenizer.convert_tokens_to_ids("send")
    for t, token in enumerate(ids):
        if own[t] and decided[t] < 0:
            assert float(logits[t, token]) > (0.7 if token == send else 0.9), tokenizer.decode([token])
    assert RIGHT[problem.items[0]] in tokenizer.decode(ids)
