"""The task "chain" as everything outside the arena sees it. Importing it imports no torch."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from gear_rl.arena.chain import problem
from gear_rl.arena.chain.problem import chain_reward
from gear_rl.arena.chain.tiers import BUDGETS
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


class Chain:
    """Sums modulo 100, one after the other: one turn, a reward function, and a known first wrong step.

    >>> [row] = TASK.rows("easy", num=1, first_seed=0)
    >>> row["privileged_context"], row["answer"]
    ('12 +3 = 15 ; 15 -2 = 13 ; 13 -7 = 06 ; ans 06', '06')
    """

    name = "chain"
    aliases: tuple[str, ...] = ("sums",)
    summary = "arithmetic"
    agent = False
    budgets: Mapping[str, Budget] = BUDGETS
    # On the default tier, the demo's, every method ends at 0.94 and none can be distinguished from another.
    laboratory_tier = "hard"
    held_out = HELD_OUT
    checkpoint = Path(__file__).parent / "checkpoint"
    answer_pattern = problem.ANSWER_PATTERN
    rewards: tuple[str, ...] = ("arena", "gear_rl.arena.chain:steps_reward")
    faults: Mapping[str, str] = {"result": "a wrong result"}

    @property
    def reward(self) -> Reward | None:
        """1.0 for a right final answer, else 0.0."""
        return chain_reward

    def truth_of(self, tier: str) -> TruthOf | None:
        """Every token of the worked solution is a decision: it is the only way to be right but for luck."""
        from gear_rl.arena.chain.truth import truth

        return truth

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
        from gear_rl.arena.evaluate import accuracy

        return [*accuracy(trainer.model, trainer.processing_class, rows, chain_reward, seed=seed)]

    def cases(
        self,
        tokenizer: Any,
        tier: str,
        num: int,
        *,
        reference: Literal["trace", "shuffled"] = "trace",
        fault: str | None = None,
    ) -> list[Case]:
        """Held-out problems with one wrong result; `fault` can only be that."""
        from gear_rl.arena.faults import first_planted, first_wrong
        from gear_rl.arena.model import EOS

        def case(seed: int) -> Case:
            chosen = problem.generate(seed, tier)
            [row] = problem.rows(tier, num=1, reference=reference, first_seed=seed)
            wrong = tokenizer(problem.plant(chosen, seed).completion + EOS)["input_ids"]
            right = tokenizer(problem.solve(chosen).trace + EOS)["input_ids"]
            before = ["", *token_texts(wrong, tokenizer)[:-1]]
            return Case(
                row=row,
                faulty=[wrong],
                right=[right],
                fault=first_wrong(wrong, right),
                choices=tuple(text.endswith("= ") for text in before),  # the result of a step
            )

        return first_planted(case, self.held_out, num, tier)

    def self_test(self, tiers: Sequence[str]) -> dict[str, int]:
        """How many problems of each tier passed."""
        from gear_rl.arena.chain.self_test import self_test

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
        """Accuracies, and how well signals rank the first wrong token; a fault is planted in every problem."""
        from gear_rl.arena.chain.check import check

        with instruments.status(f"solving {n} problems of each tier ..."):
            return check(model, tokenizer, n=n, tiers=tiers)

    def tables(self, facts: Mapping[str, Any]) -> list[FactTable]:
        """Accuracies, then ranks."""
        from gear_rl.arena.ranks import SIGNALS

        n = next(iter(facts.values()))["n"]
        columns = ("sampled", "greedy", "sampled_trace", "sampled_answer", "sampled_shuffled")
        accuracies = FactTable(
            title=f"chain: share of {n} held-out problems solved at temperature 1; the last three with a "
            "reference",
            columns=("tier", "alone", "greedy", "trace", "answer only", "shuffled"),
            rows=[(tier, *(f"{row[column]:.3f}" for column in columns)) for tier, row in facts.items()],
        )
        ranks = FactTable(
            title="chain: AUC of the first wrong token against the tokens before it; 0.5 is chance",
            columns=tuple(name.replace("_", " ") for name in ("tier", "errors", "n", *SIGNALS)),
            rows=[
                (tier, kind.replace("_", " "), str(row[kind]["n"]), *(f"{row[kind][s]:.3f}" for s in SIGNALS))
                for tier, row in facts.items()
                for kind in ("on_policy", "planted")
            ],
        )
        return [accuracies, ranks]

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
        from gear_rl.arena.chain.recipe import Recipe, build_chain

        return build_chain(out_dir, seed, recipe=recipe or Recipe(), progress=progress)


TASK: Task = Chain()
