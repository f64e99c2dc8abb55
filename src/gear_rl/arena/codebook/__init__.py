"""The task "codebook": many codes to look up in one completion, each a decision and a skill of its own.

Importing it imports no torch.
"""

from pathlib import Path

from gear_rl.arena.codebook.problem import ANSWER_PATTERN, TIERS, codebook_reward, exact_reward, generate
from gear_rl.arena.codebook.truth import truth
from gear_rl.arena.task import TEMPLATE, Budget, Task

__all__ = ["ANSWER_PATTERN", "TASK", "TEMPLATE", "codebook_reward", "exact_reward", "rows"]

TASK = Task(
    name="codebook",
    summary="codes",
    budgets={
        # Few rollouts a step, where credit is scarce. Tokens: lead and end, two a decision, filler, two to spare.
        name: Budget(
            steps=40,
            learning_rate=4e-4,
            max_completion_tokens=2 + 2 * tier.symbols + tier.filler * (tier.symbols - 1) + 2,
            rollouts_per_step=16,
        )
        for name, tier in TIERS.items()
    },
    generate=generate,
    checkpoint=Path(__file__).parent / "checkpoint",
    answer_pattern=ANSWER_PATTERN,
    fault="code",
    reward=codebook_reward,
    truth=truth,
    # No reward depends on the irrelevant words, but the student finds its place in the list by them.
    without_truth=("words",),
    tuned_on=("easy", "default", "k8", "k16", "k32"),
    rewards=("arena", "gear_rl.arena.codebook:exact_reward"),
)
rows = TASK.rows
