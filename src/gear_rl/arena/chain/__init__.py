"""The task "chain": sums modulo 100, one after the other, where the first wrong step is known exactly.

Importing it imports no torch.
"""

from pathlib import Path

from gear_rl.arena.chain.problem import ANSWER_PATTERN, chain_reward, generate, steps_reward, truth
from gear_rl.arena.task import TEMPLATE, Budget, Task

__all__ = ["ANSWER_PATTERN", "TASK", "TEMPLATE", "chain_reward", "rows", "steps_reward"]

TASK = Task(
    name="chain",
    summary="arithmetic",
    budgets={
        # Four tokens a step, two for the answer's line, and two to spare.
        "easy": Budget(steps=20, learning_rate=1e-4, max_completion_tokens=16),
        "default": Budget(steps=30, learning_rate=1e-4, max_completion_tokens=24),
        # A third of the rate: ends where methods can still differ, not near 1.
        "hard": Budget(steps=34, learning_rate=3e-5, max_completion_tokens=60),
    },
    generate=generate,
    checkpoint=Path(__file__).parent / "checkpoint",
    answer_pattern=ANSWER_PATTERN,
    fault="result",
    reward=chain_reward,
    truth=truth,
    is_choice=lambda before, text: before.endswith("= "),  # the result of a step
    tuned_on=("easy", "default", "hard"),
    # On the default tier, the demo's, every method ends at 0.94 and none can be distinguished from another.
    laboratory_tier="hard",
    rewards=("arena", "gear_rl.arena.chain:steps_reward"),
)
rows = TASK.rows
