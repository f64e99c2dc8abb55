"""The task "errands" as everything outside the arena sees it. Importing it imports no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

from gear_rl.arena.errands import problem
from gear_rl.arena.errands.tiers import BUDGETS
from gear_rl.arena.task import (
    FIRST_TRAIN_SEED,
    HELD_OUT,
    Budget,
    Case,
    FactTable,
    Instruments,
    Reference,
    Reward,
    Task,
    TrainerOf,
    TruthOf,
)
from gear_rl.arena.truth import token_texts


class Errands:
    """Many requests to settle in as many turns: independent decisions of an agent, and one reward for all.

    >>> [row] = TASK.rows("easy", num=1, first_seed=0)
    >>> row["prompt"][0]["content"].split()[0], TASK.environment("easy").__name__
    ('send', 'ErrandsEnv')
    """

    name = "errands"
    aliases: tuple[str, ...] = ()
    summary = "an agent's independent requests"
    agent = True
    budgets: Mapping[str, Budget] = BUDGETS
    laboratory_tier = "default"
    held_out = HELD_OUT
    checkpoint = Path(__file__).parent / "checkpoint"
    answer_pattern = problem.ANSWER_PATTERN
    rewards: tuple[str, ...] = ()
    faults: Mapping[str, str] = {"code": "a wrong code, drawn as the student errs"}

    @property
    def reward(self) -> Reward | None:
        """None: the environment counts what is settled right."""
        return None

    def truth_of(self, tier: str) -> TruthOf | None:
        """The first code for every request is a decision, and every call may lead to one."""
        from gear_rl.arena.errands.truth import truth

        return truth

    def rows(
        self, tier: str, *, num: int, reference: Reference = "trace", first_seed: int = FIRST_TRAIN_SEED
    ) -> list[dict[str, Any]]:
        """Rows with prompt, seed, tier and reference, for the environment."""
        return problem.rows(tier, num=num, reference=reference, first_seed=first_seed)

    def fingerprint(self, tier: str, num: int) -> str:
        """The sha256 of the first held-out problems and right calls."""
        return problem.fingerprint(tier, num)

    def environment(self, tier: str) -> type[Any] | None:
        """The desk that takes what is sent; the same in every tier."""
        from gear_rl.arena.errands.env import ErrandsEnv

        return ErrandsEnv

    def solve(self, trainer: Any, rows: Sequence[Mapping[str, Any]], *, seed: int) -> list[float | None]:
        """The reward of one rollout per row, through the trainer's own loop of tools."""
        return trainer.solve(rows, seed=seed)

    def cases(
        self,
        tokenizer: Any,
        tier: str,
        num: int,
        *,
        reference: Literal["trace", "shuffled"] = "trace",
        fault: str | None = None,
    ) -> list[Case]:
        """Held-out problems with one wrong code; `fault` can only be that."""
        from gear_rl.arena.calls import tokens, turns_of
        from gear_rl.arena.errands.env import played
        from gear_rl.arena.faults import first_planted, first_wrong

        def case(seed: int) -> Case:
            chosen = problem.generate(seed, tier)
            wrong = played(chosen, problem.plant(chosen, seed)[0])
            right = played(chosen, problem.sends(chosen))
            [row] = problem.rows(tier, num=1, reference=reference, first_seed=seed)
            ids, mask = tokens(tokenizer, wrong)
            place = first_wrong(ids, tokens(tokenizer, right)[0])
            words = zip(token_texts(ids, tokenizer), mask, strict=True)
            choices = tuple(own and text.strip().isdigit() for text, own in words)
            faulty, gold = turns_of(tokenizer, wrong), turns_of(tokenizer, right)
            return Case(row=row, faulty=faulty, right=gold, fault=place, choices=choices)

        return first_planted(case, self.held_out, num, tier)

    def self_test(self, tiers: Sequence[str]) -> dict[str, int]:
        """How many problems of each tier passed."""
        from gear_rl.arena.errands.self_test import self_test

        return self_test(tiers)

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
        """Rewards with and without a reference, the table of habits, and ranks."""
        from gear_rl.arena.errands.check import check

        return check(model, tokenizer, n=n, num_faults=num_faults, tiers=tiers, instruments=instruments)

    def tables(self, facts: Mapping[str, Any]) -> list[FactTable]:
        """Rewards, then habits, then ranks."""
        from gear_rl.arena.habits import habits_table
        from gear_rl.arena.ranks import auc_table

        columns = ("sampled", "greedy", "sampled_trace", "sampled_answer", "sampled_shuffled")
        rewards = FactTable(
            title=f"errands: mean reward of {next(iter(facts.values()))['n']} held-out problems; the last three "
            "with a reference",
            columns=("tier", "alone", "greedy", "trace", "answer only", "shuffled"),
            rows=[(tier, *(f"{row[column]:.3f}" for column in columns)) for tier, row in facts.items()],
        )
        return [rewards, habits_table(self.name, facts), auc_table(self.name, facts, ("planted",))]

    def build(
        self,
        out_dir: str | Path,
        seed: int = 0,
        *,
        recipe: Any = None,
        trainer_of: TrainerOf | None = None,
        progress: bool = True,
    ) -> Path:
        """The checkpoint's folder; it is measured now and then where a trainer is given."""
        from gear_rl.arena.errands.check import success_now
        from gear_rl.arena.errands.recipe import Recipe, build_errands

        measure = None if trainer_of is None else partial(success_now, trainer_of)
        return build_errands(out_dir, seed, recipe=recipe or Recipe(), measure=measure, progress=progress)


TASK: Task = Errands()
