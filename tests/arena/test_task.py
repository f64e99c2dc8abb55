"""The catalogue: every task keeps the protocol, and a third one is a folder and a line."""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gear_rl.arena import model
from gear_rl.arena.evaluate import accuracy
from gear_rl.arena.faults import first_planted, first_wrong
from gear_rl.arena.task import TASKS, Budget, Case, FactTable, Task, all_tasks, dataset_task, get_task
from gear_rl.data.rewards.catalogue import load_reward
from gear_rl.data.rows import load_rows
from gear_rl.errors import InputError
from gear_rl.lab.compare import plan_of
from gear_rl.lab.score import arena_material
from gear_rl.runs.arena import arena_config, known_task, task_of
from gear_rl.runs.config import load_config
from gear_rl.runs.trainer import load_environment


@pytest.mark.parametrize("task", all_tasks(), ids=lambda task: task.name)
def test_every_task_keeps_the_protocol(task: Task) -> None:
    assert TASKS[task.name] and isinstance(task, Task)
    assert {"easy", "default", "hard"} <= set(task.budgets) and task.laboratory_tier in task.budgets
    assert (task.checkpoint / "model.safetensors").is_file()
    assert task.faults
    assert task.agent == (task.reward is None), "an environment judges an agent, a reward function the others"
    for tier in task.budgets:
        assert (task.environment(tier) is not None) == task.agent
        held_out = task.rows(tier, num=3, first_seed=task.held_out.start)
        assert held_out == task.rows(tier, num=3, first_seed=task.held_out.start)
        assert not {json.dumps(row) for row in held_out} & {json.dumps(r) for r in task.rows(tier, num=3)}
        assert len(task.fingerprint(tier, 3)) == 64
    with pytest.raises(ValueError, match="mix held-out problems"):
        task.rows("easy", num=2, first_seed=task.held_out.stop - 1)


@pytest.mark.parametrize(
    ("task", "sha256"),
    [
        ("chain", "26f0a56646bb17c0fe07e1f808f0c1cf2cd4e6acad71a2d83e23f16ce7b2014b"),
        ("codebook", "4359a3ed563446f806292613a83a359fdb7530bb2617e32690ed71f61549bea3"),
        ("errands", "29349ac9e9a1adec296b68f8cee527ae4b4c1e82b4b96a8c52568f2bc022de03"),
    ],
)
def test_the_held_out_problems_are_the_published_ones(task: str, sha256: str) -> None:
    assert get_task(task).fingerprint("default", 1024) == sha256


def test_a_task_is_known_by_its_name_and_aliases() -> None:
    assert get_task("sums") is get_task("chain")
    with pytest.raises(KeyError):
        get_task("chian")
    with pytest.raises(InputError, match="--task: no task 'chian'; did you mean chain"):
        known_task("chian")
    with pytest.raises(InputError, match="--tier: the task has no tier 'hrad'; did you mean hard"):
        task_of("errands", "hrad")


def test_the_catalogue_waits_for_no_torch() -> None:
    code = "import sys, gear_rl.arena.task as t; t.all_tasks(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def _echo_reward(completions: list[Any], answer: list[str], **_: Any) -> list[float]:
    return [float(text == gold) for text, gold in zip(completions, answer, strict=True)]


class Echo:
    """A third task, as small as one can be: to repeat a number."""

    name = "echo"
    aliases: tuple[str, ...] = ("parrot",)
    summary = "to repeat"
    agent = False
    budgets: Mapping[str, Budget] = {"default": Budget(steps=7, learning_rate=1e-3, max_completion_tokens=5)}
    laboratory_tier = "default"
    held_out = range(10)
    checkpoint = Path("nowhere")
    answer_pattern = r"\d\d"
    rewards: tuple[str, ...] = ("arena", "math")
    faults: Mapping[str, str] = {"digit": "a wrong digit"}
    reward = staticmethod(_echo_reward)

    def rows(
        self, tier: str, *, num: int, reference: str = "trace", first_seed: int = 10
    ) -> list[dict[str, Any]]:
        texts = [f"{seed:02d}" for seed in range(first_seed, first_seed + num)]
        return [
            {"prompt": [{"role": "user", "content": text}], "privileged_context": text, "answer": text}
            for text in texts
        ]

    def fingerprint(self, tier: str, num: int) -> str:
        return f"{num:064d}"

    def truth_of(self, tier: str) -> None:
        return None

    def environment(self, tier: str) -> None:
        return None

    def solve(self, trainer: Any, rows: Any, *, seed: int) -> list[float | None]:
        return [*accuracy(trainer.model, trainer.processing_class, rows, _echo_reward, seed=seed)]

    def cases(
        self, tokenizer: Any, tier: str, num: int, *, reference: str = "trace", fault: str | None = None
    ) -> list[Case]:
        def case(seed: int) -> Case:
            [row] = self.rows(tier, num=1, first_seed=seed)
            right, wrong = ([seed, 0], [seed + 1, 0])
            return Case(row=row, faulty=[wrong], right=[right], fault=first_wrong(wrong, right))

        return first_planted(case, self.held_out, num, tier)

    def self_test(self, tiers: Any) -> dict[str, int]:
        return dict.fromkeys(tiers, len(self.held_out))

    def check(self, model: Any, tokenizer: Any, **_: Any) -> dict[str, Any]:
        return {}

    def tables(self, facts: Any) -> list[FactTable]:
        return []

    def build(self, out_dir: str | Path, seed: int = 0, **_: Any) -> Path:
        return Path(out_dir)


ECHO = Echo()


@pytest.fixture
def echo(monkeypatch: pytest.MonkeyPatch) -> Echo:
    """The catalogue with one line more."""
    monkeypatch.setitem(TASKS, "echo", f"{__name__}:ECHO")
    return get_task("parrot")


def test_a_third_task_is_one_line(echo: Echo) -> None:
    assert dataset_task("arena/echo") == ("echo", "default")
    assert [*load_rows("arena/echo", chat=True, limit=2)] == echo.rows("default", num=2)
    with pytest.raises(InputError, match="the arena's echo has no tier 'hard'"):
        load_rows("arena/echo/hard", chat=True)
    assert load_reward("arena", "arena/echo")(["12", "12"], answer=["12", "13"]) == [1.0, 0.0]

    config = arena_config("parrot", "default", "gear", seed=0, steps=2, output_dir="runs")
    assert (config.dataset, config.reward, config.environment) == ("arena/echo/default", "arena", None)
    assert config.trainer["max_completion_length"] == 5 and config.trainer["learning_rate"] == 1e-3
    assert arena_config("echo", "default", {"name": "crpo"}, seed=0, steps=2, output_dir="runs").reward == [
        "arena",
        "math",
    ]
    with pytest.raises(InputError, match="environment: 'arena' needs the dataset arena/errands"):
        load_environment(config.model_copy(update={"environment": "arena"}))

    assert plan_of([], task="echo", tier="default", seeds=1, n_eval=7).steps == 7
    with pytest.raises(InputError, match="--n-eval: 8; there are 7 held-out problems to report on"):
        plan_of([], task="echo", tier="default", seeds=1, n_eval=8)
    with pytest.raises(InputError, match="--fault: 'code' is not one of digit"):
        arena_material("echo", "default", 4, "code")
    assert arena_material("echo", "default", 4).about()["fault"] == "digit"
    with pytest.raises(InputError, match="no task 'ecko'; did you mean echo"):
        known_task("ecko")
    with pytest.raises(FileNotFoundError, match="no checkpoint in nowhere"):
        model.load(task="echo")


def test_a_dataset_of_an_agent_brings_its_environment() -> None:
    assert load_config(None, ["--model", "arena", "--dataset", "arena/errands"]).environment == "arena"
    with pytest.raises(InputError, match="reward: 'arena' is not for 'arena/errands'"):
        load_reward("arena", "arena/errands")
