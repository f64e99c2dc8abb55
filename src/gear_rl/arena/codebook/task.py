"""The task "codebook" as everything outside the arena sees it. Importing it imports no torch."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from gear_rl.arena.codebook import problem
from gear_rl.arena.codebook.problem import codebook_reward
from gear_rl.arena.codebook.tiers import BUDGETS, TIERS
from gear_rl.arena.codebook.truth import truth
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


class Codebook:
    """Many codes to look up in one completion: independent decisions, and one reward for all of them.

    >>> [row] = TASK.rows("easy", num=1, first_seed=0)
    >>> row["privileged_context"], row["answer"]
    ('codes Mo 64 Fa 83 De 63 Ni 80', 'Mo 64 Fa 83 De 63 Ni 80')
    """

    name = "codebook"
    aliases: tuple[str, ...] = ("codes",)
    summary = "codes"
    agent = False
    budgets: Mapping[str, Budget] = BUDGETS
    laboratory_tier = "default"
    held_out = HELD_OUT
    checkpoint = Path(__file__).parent / "checkpoint"
    answer_pattern = problem.ANSWER_PATTERN
    rewards: tuple[str, ...] = ("arena", "gear_rl.arena.codebook:exact_reward")
    faults: Mapping[str, str] = {"code": "a wrong code, drawn as the student errs"}

    @property
    def reward(self) -> Reward | None:
        """The share of right codes; in the tier "exact" whether all are."""
        return codebook_reward

    def truth_of(self, tier: str) -> TruthOf | None:
        """Every code is a decision, and every symbol leads to one. None with irrelevant words: no reward depends
        on them, but the student finds its place in the list by them."""
        return None if TIERS[tier].filler else truth

    def rows(
        self, tier: str, *, num: int, reference: Reference = "trace", first_seed: int = FIRST_TRAIN_SEED
    ) -> list[dict[str, Any]]:
        """Rows with prompt, privileged context and answer."""
        return problem.rows(tier, num=num, reference=reference, first_seed=first_seed)

    def fingerprint(self, tier: str, num: int) -> str:
        """The sha256 of the first held-out problems and answers."""
        return problem.fingerprint(tier, num)

    def environment(self, tier: str) -> type[Any] | None:
        """None: a completion is one turn without tools."""
        return None

    def solve(self, trainer: Any, rows: Sequence[Mapping[str, Any]], *, seed: int) -> list[float | None]:
        """The reward of one completion per row, sampled from the trainer's model without its loop."""
        from gear_rl.arena.codebook.check import MAX_NEW_TOKENS
        from gear_rl.arena.evaluate import accuracy

        model, tokenizer = trainer.model, trainer.processing_class
        return [*accuracy(model, tokenizer, rows, codebook_reward, seed=seed, max_new_tokens=MAX_NEW_TOKENS)]

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
        from gear_rl.arena.faults import first_planted, first_wrong
        from gear_rl.arena.model import EOS

        def case(seed: int) -> Case:
            chosen = problem.generate(seed, tier)
            [row] = problem.rows(tier, num=1, reference=reference, first_seed=seed)
            wrong = tokenizer(problem.plant(chosen, seed).completion + EOS)["input_ids"]
            right = tokenizer(problem.solve(chosen).trace + EOS)["input_ids"]
            choices = tuple(text.strip().isdigit() for text in token_texts(wrong, tokenizer))
            fault = first_wrong(wrong, right)
            return Case(row=row, faulty=[wrong], right=[right], fault=fault, choices=choices)

        return first_planted(case, self.held_out, num, tier)

    def self_test(self, tiers: Sequence[str]) -> dict[str, int]:
        """How many problems of each tier passed."""
        from gear_rl.arena.codebook.self_test import self_test

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
        """Shares of right codes, the table of habits, and ranks; a fault is planted in every problem."""
        from gear_rl.arena.codebook.check import check

        with instruments.status(f"solving {n} problems of each tier ..."):
            return check(model, tokenizer, n=n, tiers=tiers)

    def tables(self, facts: Mapping[str, Any]) -> list[FactTable]:
        """Shares of right codes, then habits, then ranks."""
        from gear_rl.arena.habits import habits_table
        from gear_rl.arena.ranks import auc_table

        first = next(iter(facts.values()))
        columns = ("reward", "sampled", "greedy", "sampled_trace", "sampled_answer", "sampled_shuffled")
        shares = FactTable(
            title=f"codebook: reward, and share of right codes, over {first['n']} held-out problems at "
            "temperature 1; the last three with a reference",
            columns=("tier", "reward", "alone", "greedy", "trace", "answer only", "shuffled"),
            rows=[(tier, *(f"{row[column]:.3f}" for column in columns)) for tier, row in facts.items()],
        )
        return [shares, habits_table(self.name, facts), auc_table(self.name, facts, ("on_policy", "planted"))]

    def build(
        self,
        out_dir: str | Path,
        seed: int = 0,
        *,
        recipe: Any = None,
        trainer_of: TrainerOf | None = None,
        progress: bool = True,
    ) -> Path:
        """The checkpoint's folder; it is measured without a trainer."""
        from gear_rl.arena.codebook.recipe import Recipe, build_codebook

        return build_codebook(out_dir, seed, recipe=recipe or Recipe(), progress=progress)


TASK: Task = Codebook()
