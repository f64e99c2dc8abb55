"""The task "chain": sums modulo 100, one after the other, where the first wrong step is known exactly.

The names that a training script needs; importing them imports no torch.
"""

from gear_rl.arena.chain.problem import ANSWER_PATTERN, chain_reward, rows, steps_reward
from gear_rl.arena.task import TEMPLATE

__all__ = ["ANSWER_PATTERN", "TEMPLATE", "chain_reward", "rows", "steps_reward"]
