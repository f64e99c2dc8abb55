"""The task "ledger" as everything outside the arena sees it. Importing it imports no torch."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

from gear_rl.arena.ledger import problem
from gear_rl.arena.ledger.tiers import BUDGETS
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


class Ledger:
    """Look people up in a database, then move money: an agent with tools, judged by the database's state.

    >>> [row] = TASK.rows("easy", num=1, first_seed=0)
    >>> row["prompt"][0]["content"], TASK.environment("easy").__name__
    ('pay all from the second of jim to fay', 'LedgerEnv')
    """

    name = "ledger"
    aliases: tuple[str, ...] = ()
    summary = "an agent with tools"
    agent = True
    budgets: Mapping[str, Budget] = BUDGETS
    laboratory_tier = "default"
    held_out = HELD_OUT
    checkpoint = Path(__file__).parent / "checkpoint"
    answer_pattern = problem.ANSWER_PATTERN
    rewards: tuple[str, ...] = ()
    faults: Mapping[str, str] = {"relation": "a wrong tool", "argument": "payer and payee mixed up"}

    @property
    def reward(self) -> Reward | None:
        """None: the environment compares balances."""
        return None

    def truth_of(self, tier: str) -> TruthOf | None:
        """None: who asked the wrong person may still come to the right one, which no formula knows."""
        return None

    def rows(
        self, tier: str, *, num: int, reference: Reference = "trace", first_seed: int = FIRST_TRAIN_SEED
    ) -> list[dict[str, Any]]:
        """Rows with prompt, seed, tier and reference, for the environment."""
        return problem.rows(tier, num=num, reference=reference, first_seed=first_seed)

    def fingerprint(self, tier: str, num: int) -> str:
        """The sha256 of the first held-out instructions and gold calls."""
        return problem.fingerprint(tier, num)

    def environment(self, tier: str) -> type[Any] | None:
        """The database with the tier's tools."""
        from gear_rl.arena.ledger.env import environment

        return environment(tier)

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
        """Held-out problems with one wrong call, by default a wrong tool."""
        from gear_rl.arena.calls import tokens, turns_of
        from gear_rl.arena.faults import first_planted, first_wrong
        from gear_rl.arena.ledger.episodes import Fault, episode, plant

        kind = cast(Fault, fault or next(iter(self.faults)))

        def case(seed: int) -> Case:
            chosen = problem.generate(seed, tier)
            wrong, right = plant(chosen, seed, kind).messages, episode(chosen).messages
            [row] = problem.rows(tier, num=1, reference=reference, first_seed=seed)
            ids, mask = tokens(tokenizer, wrong)
            place = first_wrong(ids, tokens(tokenizer, right)[0])
            # Names of tools, of people and things, and amounts: whole words.
            words = zip(token_texts(ids, tokenizer), mask, strict=True)
            choices = tuple(own and text.isalnum() for text, own in words)
            faulty, gold = turns_of(tokenizer, wrong), turns_of(tokenizer, right)
            return Case(row=row, faulty=faulty, right=gold, fault=place, choices=choices)

        return first_planted(case, self.held_out, num, tier)

    def self_test(self, tiers: Sequence[str]) -> dict[str, int]:
        """How many problems of each tier passed."""
        from gear_rl.arena.ledger.self_test import self_test

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
        """Success with and without a reference, and whether onsets find the turn of a planted fault."""
        from gear_rl.arena.ledger.check import check

        return check(model, tokenizer, n=n, num_faults=num_faults, tiers=tiers, instruments=instruments)

    def tables(self, facts: Mapping[str, Any]) -> list[FactTable]:
        """Success, then places."""
        n = next(iter(facts.values()))["n"]
        columns = ("sampled", "greedy", "sampled_trace", "sampled_answer", "sampled_shuffled")
        success = FactTable(
            title=f"ledger: share of {n} held-out problems that are solved; the last three with a reference",
            columns=("tier", "alone", "greedy", "trace", "answer", "shuffled"),
            rows=[(tier, *(f"{row[column]:.3f}" for column in columns)) for tier, row in facts.items()],
        )
        shares = ("chance", "onset", "shuffled_onset", "log_ratio", "entropy")
        places = FactTable(
            title="ledger: how often the turn of a planted wrong call is found",
            caption="onset: GEAR's onset of largest divergence; blind: the same when the teacher is shown "
            "another problem; then the token where a signal is largest: log-ratio of the sampled token, "
            "student entropy",
            columns=("tier", "fault", "faults", "chance", "onset", "blind", "log-ratio", "entropy"),
            rows=[
                (tier, kind, str(values["n"]), *(f"{values[name]:.3f}" for name in shares))
                for tier, row in facts.items()
                for kind, values in row["planted"].items()
            ],
        )
        return [success, places]

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
        from gear_rl.arena.ledger.check import success_now
        from gear_rl.arena.ledger.recipe import LedgerRecipe, build_ledger

        measure = None if trainer_of is None else partial(success_now, trainer_of)
        return build_ledger(
            out_dir, seed, recipe=recipe or LedgerRecipe(), measure=measure, progress=progress
        )


TASK: Task = Ledger()
