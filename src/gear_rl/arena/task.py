"""The type of the arena's tasks, and their catalogue: a task is one folder and one line here.

Code outside this package uses `Task` and never compares with a task's name.
Importing this module imports no task and no torch.
"""

import hashlib
import random
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, ClassVar, Literal, Protocol, TypeVar, cast

from gear_rl.arena.token_truth import Truth, token_texts

TASKS: dict[str, "Task | str"] = {
    "chain": "gear_rl.arena.chain:TASK",
    "codebook": "gear_rl.arena.codebook:TASK",
    "errands": "gear_rl.arena.errands:TASK",
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
TruthOf = Callable[[Sequence[int], Mapping[str, Any], Any], Truth]
"""From the ids of a rollout's completion, its row and the tokenizer to the truth about every token."""
Completion = tuple[str, ...]
"""The model's text, a tool's answer, and so on in turns, ending with the model's; one text without tools."""


class Problem(Protocol):
    """A problem of a task: its prompt, its right completion, and a wrong one."""

    @property
    def text(self) -> str:
        """The prompt."""
        ...

    @property
    def answer(self) -> str:
        """The right answer, which the reward reads."""
        ...

    def solve(self) -> Completion:
        """A right completion."""
        ...

    def plant(self, seed: int) -> Completion:
        """A completion with one fault: its first wrong token, what follows is consistent with it."""
        ...

    def reference(self, kind: Reference, seed: int) -> str | None:
        """What only the teacher sees; ``seed`` draws the other problem of "shuffled"."""
        ...


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
    faulty: list[list[int]]
    """The ids of the completion with the fault, closing tokens included: the model's turns, and between two of
    them the tools' answer."""
    right: list[list[int]]
    fault: Collection[int]
    """The places of the fault in the faulty completion, tool answers included."""
    choices: tuple[bool, ...]
    """Whether each token of the faulty completion, tool answers included, is a decision and not form."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Task:
    """A task of the arena: the settings of its folder, and the methods that all tasks share.

    >>> [row] = get_task("chain").rows("easy", num=1, first_seed=0)
    >>> row["prompt"][0]["content"], row["privileged_context"], row["answer"]
    ('12 +3 -2 -7', '12 +3 = 15 ; 15 -2 = 13 ; 13 -7 = 06 ; ans 06', '06')
    """

    held_out: ClassVar[range] = HELD_OUT
    name: str
    summary: str
    """The skill, in a few words."""
    budgets: Mapping[str, Budget]
    """The tiers, and how to train on each."""
    generate: Callable[[int, str], Problem]
    """The problem of a seed in a tier."""
    checkpoint: Path
    """The folder with the shipped model."""
    answer_pattern: str
    """A regular expression of a rollout's answer."""
    fault: str
    """The kind of a planted fault, in one word."""
    reward: Reward | None = None
    """Rewards completions; None for an agent, whose environment does."""
    environment: type[Any] | None = None
    """The class with an agent's tools, in TRL's contract."""
    truth: TruthOf | None = None
    without_truth: tuple[str, ...] = ()
    """Tiers in which no formula gives a token's credit."""
    is_choice: Callable[[str, str], bool] = lambda before, text: text.strip().isdigit()
    """Whether a token is a decision, given the text of the token before it and its own."""
    tuned_on: tuple[str, ...] = ()
    """Tiers on which settings of methods are chosen; every other one only reports."""
    laboratory_tier: str = DEFAULT_TIER
    """The default tier for comparing methods, where GRPO ends between its start and 1."""
    rewards: tuple[str, ...] = ()
    """The names of several rewards, for methods that compare them; empty where the task has one."""

    @property
    def agent(self) -> bool:
        """Whether the model calls tools in an environment; else a reward function judges its completion."""
        return self.environment is not None

    def truth_of(self, tier: str) -> TruthOf | None:
        """The truth about every token of a rollout; None where no formula gives it and only branching does."""
        return None if tier in self.without_truth else self.truth

    def rows(
        self,
        tier: str = DEFAULT_TIER,
        *,
        num: int,
        reference: Reference = "trace",
        first_seed: int = FIRST_TRAIN_SEED,
    ) -> list[dict[str, Any]]:
        """Data set rows of consecutive seeds; those from 0 on are held out.

        The prompt never contains the privileged context. An agent's row has none: its environment makes the
        problem again from the seed. Raises ValueError where held-out and training problems would mix.
        """
        seeds = range(first_seed, first_seed + num)
        if seeds.start in HELD_OUT and seeds.stop > HELD_OUT.stop:
            raise ValueError(f"seeds {seeds} mix held-out problems with training problems")
        return [self._row(seed, tier, reference) for seed in seeds]

    def _row(self, seed: int, tier: str, reference: Reference) -> dict[str, Any]:
        problem = self.generate(seed, tier)
        row: dict[str, Any] = {"prompt": [{"role": "user", "content": problem.text}]}
        if self.agent:
            return row | {"seed": seed, "tier": tier, "reference": reference}
        return row | {"privileged_context": problem.reference(reference, seed), "answer": problem.answer}

    def fingerprint(self, tier: str, num: int) -> str:
        """The sha256 of the first held-out problems and answers: reports with the same one are comparable."""
        digest = hashlib.sha256()
        for problem in (self.generate(seed, tier) for seed in HELD_OUT[:num]):
            digest.update(f"{problem.text} -> {problem.answer}\n".encode())
        return digest.hexdigest()

    def solve(self, trainer: Any, rows: Sequence[Mapping[str, Any]], *, seed: int) -> list[float | None]:
        """The reward of one rollout per row, sampled by a trainer; an agent's in the trainer's tool loop."""
        if self.reward is None:
            return trainer.solve(rows, seed=seed)
        from gear_rl.arena.model import sample

        texts = sample(trainer.model, trainer.processing_class, rows, seed=seed)
        return [*self.reward(texts, answer=[row["answer"] for row in rows])]

    def cases(
        self, tokenizer: Any, tier: str, num: int, *, reference: Literal["trace", "shuffled"] = "trace"
    ) -> list[Case]:
        """The first held-out problems of a tier, each with a planted fault."""
        return [self._case(tokenizer, seed, tier, reference) for seed in HELD_OUT[:num]]

    def _case(self, tokenizer: Any, seed: int, tier: str, reference: Reference) -> Case:
        from gear_rl.arena.model import tokens

        problem = self.generate(seed, tier)
        faulty, right = tokens(tokenizer, problem.plant(seed)), tokens(tokenizer, problem.solve())
        ids, gold = (list(chain.from_iterable(turns)) for turns in (faulty, right))
        fault = next(t for t, (wrong, due) in enumerate(zip(ids, gold, strict=False)) if wrong != due)
        return Case(
            row=self._row(seed, tier, reference),
            faulty=faulty,
            right=right,
            fault=range(fault, fault + 1),
            choices=self.choices_of(faulty, tokenizer),
        )

    def choices_of(self, turns: Sequence[Sequence[int]], tokenizer: Any) -> tuple[bool, ...]:
        """Whether each token is a decision of the model; its turns alternate with the tools' answers."""
        own = [place % 2 == 0 for place, turn in enumerate(turns) for _ in turn]
        texts = token_texts([*chain.from_iterable(turns)], tokenizer)
        return tuple(
            mine and self.is_choice(before, text)
            for mine, before, text in zip(own, ["", *texts[:-1]], texts, strict=True)
        )


def get_task(name: str) -> Task:
    """The task of that name. Raises KeyError if there is none.

    >>> get_task("chain").name
    'chain'
    """
    entry = TASKS[name]
    return cast(Task, resolve_name(entry)) if isinstance(entry, str) else entry


def all_tasks() -> list[Task]:
    """Every task, in the order of the catalogue.

    >>> [task.name for task in all_tasks()][0]
    'chain'
    """
    return [get_task(name) for name in TASKS]


def dataset_task(dataset: str) -> tuple[str, str]:
    """Task and tier of a dataset's name, with defaults. The tier is not checked.

    >>> dataset_task("arena"), dataset_task("arena/hard"), dataset_task("arena/errands")
    (('chain', 'default'), ('chain', 'hard'), ('errands', 'default'))
    """
    first, _, rest = dataset.partition("/")[2].partition("/")
    task, tier = (first, rest) if first in TASKS else (DEFAULT_TASK, f"{first}/{rest}" if rest else first)
    return task, tier or DEFAULT_TIER


Drawn = TypeVar("Drawn", bound=Problem)


def problem_of(seed: int, draw: Callable[[random.Random], Drawn]) -> Drawn:
    """The first problem that ``draw`` gives for a seed on the seed's side of the split.

    A checksum of the prompt splits, since two seeds may draw the same problem. So seeds in `HELD_OUT` never share
    one with another seed.
    """
    rng = random.Random(seed)
    while True:
        problem = draw(rng)
        if (zlib.crc32(problem.text.encode()) % HELD_OUT_SHARE == 0) == (seed in HELD_OUT):
            return problem


def texts_of(completions: Sequence[Any]) -> list[str]:
    """Completions as texts: strings as they are, of chat messages the last one's content.

    >>> texts_of(["ans 45", [{"role": "assistant", "content": "ans 46"}], [{"role": "assistant"}]])
    ['ans 45', 'ans 46', '']
    """
    return [c if isinstance(c, str) else str(c[-1].get("content") or "") for c in completions]
