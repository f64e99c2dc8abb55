"""The task "errands": an agent settles many independent requests, one call of a tool each.

The names that a training script needs; importing them imports no torch.
"""

from gear_rl.arena.errands.env import ErrandsEnv
from gear_rl.arena.errands.problem import ANSWER_PATTERN, rows
from gear_rl.arena.task import TEMPLATE

__all__ = ["ANSWER_PATTERN", "TEMPLATE", "ErrandsEnv", "rows"]
