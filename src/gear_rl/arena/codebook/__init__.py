"""The task "codebook": many codes to look up in one completion, each a decision and a skill of its own.

The names that a training script needs; importing them imports no torch.
"""

from gear_rl.arena.codebook.problem import ANSWER_PATTERN, codebook_reward, exact_reward, rows
from gear_rl.arena.task import TEMPLATE

__all__ = ["ANSWER_PATTERN", "TEMPLATE", "codebook_reward", "exact_reward", "rows"]
