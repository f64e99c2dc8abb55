"""What a task of the arena is, and the catalogue of them: a task is one folder and one line here.

Everything outside this package reaches a task through `Task`; nothing there compares with a task's name.
Importing this module imports no task and no torch.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Literal, Protocol, cast, runtime_checkable

from gear_rl.arena.truth import Truth

TASKS: dict[str, Task | str] = {
    "chain": "gear_rl.arena.chain.task:TASK",
    "codebook": "gear_rl.arena.codebook.task:TASK",
    "errands": "gear_rl.arena.errands.task:TASK",
}
"""Every task by its name: the object, or where it is."""
DEFAULT_TASK = "chain"
"""The task where none is named."""
TELLING_TASK = "codebook"
"""The task of a comparison where none is named: one where credit matters, in minutes."""
DEFAULT_TIER = "default"
"""The tier where none is named; every task has it."""

HELD_OUT = range(1024)
"""Seeds of the public held-out problems; every other seed is for training."""
FIRST_TRAIN_SEED = HELD_OUT.stop
HELD_OUT_SHARE = 8
"""One problem in eight is held out: enough for 1024 distinct ones in the easiest tier."""
TEMPLATE = "{prompt}\nref {privileged_context}"
"""How the privileged context joins the user message."""

Reference = Literal["none", "trace", "answer", "shuffled"]
"""What the teacher is shown: nothing, the worked solution, its outcome, or the solution of another problem."""
Reward = Callable[..., list[float]]
"""A reward function in TRL's signature."""
Turns = list[list[int]]
TruthOf = Callable[[Sequence[int], Mapping[str, Any], Any], Truth]
"""The ids of a rollout's completion, its row and the tokenizer -> what is true about every token."""
TrainerOf = Callable[[Any, Any, str], AbstractContextManager[Any]]
"""Model, tokenizer and tier -> a trainer that solves rows with that model, while the context lasts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Training settings under which plain GRPO shows something on a tier within minutes, on one CPU core.

    >>> get_task("chain").budgets["easy"].max_completion_tokens
    16
    """

    steps: int
    learning_rate: float
    max_completion_tokens: int
    """Of the whole rollout."""
    rollouts_per_step: int = 128
    num_generations: int = 8
    max_tool_calls: int | None = None
    """Turns with a call after which a rollout ends; None where there are no tools."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A problem, a completion of it with one fault, and a right one."""

    row: dict[str, Any]
    faulty: Turns
    """The ids of each turn of the completion with the fault, closing tokens included."""
    right: Turns
    fault: range
    """Which tokens of the faulty completion are the fault, tool answers counted."""
    choices: tuple[bool, ...] = ()
    """Whether each token of the faulty completion is a decision, so that the form does not say what stands there;
    tool answers counted. Empty where nobody knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruments:
    """What measuring a checkpoint needs from outside the arena."""

    trainer_of: TrainerOf
    status: Callable[[str], AbstractContextManager[Any]]
    """Shows a text while the context lasts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FactTable:
    """Measured facts for a person: texts in columns."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]


@runtime_checkable
class Task(Protocol):
    """A task of the arena. What needs torch is imported when it is called.

    >>> task = get_task("chain")
    >>> isinstance(task, Task), task.fingerprint("easy", 8) == task.fingerprint("easy", 8)
    (True, True)
    """

    name: str
    aliases: tuple[str, ...]
    """Other names that the command line takes."""
    summary: str
    """What is learned, in a few words."""
    agent: bool
    """Whether the model calls tools in an `environment`; else a reward function judges its completion."""
    budgets: Mapping[str, Budget]
    """The tiers, and how to train on each."""
    laboratory_tier: str
    """The tier in which methods are judged where none is named: GRPO must end between its start and 1 there."""
    held_out: range
    """Seeds of the held-out problems; from its end on they are for training."""
    checkpoint: Path
    """The folder with the shipped checkpoint."""
    answer_pattern: str
    """A regular expression: where the answer of a rollout stands."""
    rewards: tuple[str, ...]
    """The rewards of a run whose method compares several, by name; empty where the task has but one."""
    faults: Mapping[str, str]
    """The kinds of faults that `cases` plants, the usual one first, and what each is in words."""

    @property
    def reward(self) -> Reward | None:
        """Judges completions; None for an agent, whose environment does."""
        ...

    def truth_of(self, tier: str) -> TruthOf | None:
        """What is true about every token of a rollout; None where no formula says what a token is worth, and a
        laboratory has to ask rollouts that branch off."""
        ...

    def rows(
        self, tier: str, *, num: int, reference: Reference = "trace", first_seed: int = FIRST_TRAIN_SEED
    ) -> list[dict[str, Any]]:
        """Data set rows of consecutive seeds. Raises ValueError where held-out and other problems would mix."""
        ...

    def fingerprint(self, tier: str, num: int) -> str:
        """The sha256 of the first held-out problems and answers: reports with the same one are comparable."""
        ...

    def environment(self, tier: str) -> type[Any] | None:
        """The environment class with the tier's tools, in TRL's contract; None where the task is no agent's."""
        ...

    def solve(self, trainer: Any, rows: Sequence[Mapping[str, Any]], *, seed: int) -> list[float | None]:
        """The reward of one rollout per row, sampled with a seed by a trainer's model."""
        ...

    def cases(
        self,
        tokenizer: Any,
        tier: str,
        num: int,
        *,
        reference: Literal["trace", "shuffled"] = "trace",
        fault: str | None = None,
    ) -> list[Case]:
        """The first `num` held-out problems of a tier in which a fault can be planted, with the fault.

        The fault is the first wrong token: what follows is consistent with it. Raises ValueError where too few
        problems take one.
        """
        ...

    def self_test(self, tiers: Sequence[str]) -> dict[str, int]:
        """How many problems of each tier passed; raises AssertionError at the first broken promise."""
        ...

    def check(
        self,
        model: Any,
        tokenizer: Any,
        *,
        n: int,
        num_faults: int,
        tiers: Sequence[str],
        instruments: Instruments,
    ) -> dict[str, Any]:
        """Measured facts about a checkpoint, by tier: success, and how well signals find a fault."""
        ...

    def tables(self, facts: Mapping[str, Any]) -> list[FactTable]:
        """What `check` measured, for a person."""
        ...

    def build(
        self,
        out_dir: str | Path,
        seed: int = 0,
        *,
        recipe: Any = None,
        trainer_of: TrainerOf | None = None,
        progress: bool = True,
    ) -> Path:
        """The folder with a checkpoint, trained from nothing; the same bytes for the same seed and machine.

        `recipe` says how long each stage trains, None for the task's own. What is built is measured now and then,
        an agent only where a trainer is given. Raises ValueError where torch is too old to have Muon.
        """
        ...


def get_task(name: str) -> Task:
    """The task of that name or alias. Raises KeyError where there is none.

    >>> get_task("errands").name, get_task("sums").name
    ('errands', 'chain')
    """
    entry = TASKS.get(name)
    if entry is None:
        for task in all_tasks():
            if name in task.aliases:
                return task
        raise KeyError(name)
    return cast(Task, resolve_name(entry)) if isinstance(entry, str) else entry


def all_tasks() -> list[Task]:
    """Every task, in the order of the catalogue.

    >>> [task.name for task in all_tasks()]
    ['chain', 'codebook', 'errands']
    """
    return [get_task(name) for name in TASKS]


def dataset_task(dataset: str) -> tuple[str, str]:
    """Task and tier that a dataset's name means, the default ones where it names none. The tier is not checked.

    >>> dataset_task("arena"), dataset_task("arena/hard"), dataset_task("arena/errands")
    (('chain', 'default'), ('chain', 'hard'), ('errands', 'default'))
    """
    first, _, rest = dataset.partition("/")[2].partition("/")
    task, tier = (first, rest) if first in TASKS else (DEFAULT_TASK, f"{first}/{rest}" if rest else first)
    return task, tier or DEFAULT_TIER


def is_held_out(prompt: str) -> bool:
    """Whether a problem is for evaluation, by a checksum of its prompt: two seeds may draw the same one.

    >>> is_held_out(get_task("chain").rows("easy", num=1, first_seed=0)[0]["prompt"][0]["content"])
    True
    """
    return zlib.crc32(prompt.encode()) % HELD_OUT_SHARE == 0


def seeds_of(num: int, first_seed: int) -> range:
    """So many consecutive seeds. Raises ValueError where they mix held-out problems with training problems.

    >>> seeds_of(3, 7)
    range(7, 10)
    """
    seeds = range(first_seed, first_seed + num)
    if seeds.start in HELD_OUT and seeds.stop > HELD_OUT.stop:
        raise ValueError(f"seeds {seeds} mix held-out problems with training problems")
    return seeds


def fingerprint_of(problems: Iterable[tuple[str, str]]) -> str:
    """The sha256 of problems and their answers.

    >>> fingerprint_of([("37 +8", "45")])[:8], fingerprint_of([])[:8]
    ('53051ecb', 'e3b0c442')
    """
    digest = hashlib.sha256()
    for problem, answer in problems:
        digest.update(f"{problem} -> {answer}\n".encode())
    return digest.hexdigest()


def texts_of(completions: Sequence[Any]) -> list[str]:
    """Completions as texts: strings as they are, of chat messages the last one's content.

    >>> texts_of(["ans 45", [{"role": "assistant", "content": "ans 46"}], [{"role": "assistant"}]])
    ['ans 45', 'ans 46', '']
    """
    return [c if isinstance(c, str) else str(c[-1].get("content") or "") for c in completions]
