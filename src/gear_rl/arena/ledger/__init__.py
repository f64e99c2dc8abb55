"""The task "ledger": an agent looks people up in a database, then moves money between two of them.

The names that a training script needs; importing them imports no torch.
"""

from gear_rl.arena.ledger.env import environment
from gear_rl.arena.ledger.problem import ANSWER_PATTERN, rows
from gear_rl.arena.task import TEMPLATE

__all__ = ["ANSWER_PATTERN", "TEMPLATE", "environment", "rows"]
