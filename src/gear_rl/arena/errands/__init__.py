"""The task "errands": an agent settles many independent requests, one call of a tool each.

Importing it imports no torch.
"""

from pathlib import Path

from gear_rl.arena.errands.env import ErrandsEnv
from gear_rl.arena.errands.problem import ANSWER_PATTERN, TIERS, generate
from gear_rl.arena.errands.truth import truth
from gear_rl.arena.task import TEMPLATE, Budget, Task

__all__ = ["ANSWER_PATTERN", "TASK", "TEMPLATE", "ErrandsEnv", "generate", "rows"]

TASK = Task(
    name="errands",
    summary="an agent's independent requests",
    budgets={
        # Few rollouts a step, where credit is scarce. A call, its answer and the header of the next turn are 20
        # tokens. Two calls more than count, so that the one left unanswered at the end never counts.
        name: Budget(
            steps=40,
            learning_rate=4e-4,
            max_completion_tokens=20 * (tier.calls + 2),
            rollouts_per_step=16,
            max_tool_calls=tier.calls + 2,
        )
        for name, tier in TIERS.items()
    },
    generate=generate,
    checkpoint=Path(__file__).parent / "checkpoint",
    answer_pattern=ANSWER_PATTERN,
    fault="code",
    environment=ErrandsEnv,
    truth=truth,
)
rows = TASK.rows
