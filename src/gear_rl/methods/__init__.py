"""The catalogue: one file per method, one line per file. Knows no forward pass and no engine."""

from gear_rl.methods.distilled_rl import DistilledRl
from gear_rl.methods.entropy_forks import EntropyForks
from gear_rl.methods.fixed_spans import FixedSpans
from gear_rl.methods.gear import Gear
from gear_rl.methods.random_onsets import RandomOnsets
from gear_rl.methods.rlcsd import Rlcsd
from gear_rl.methods.rlsd import Rlsd
from gear_rl.methods.serl import Serl
from gear_rl.methods.shuffled import Shuffled
from gear_rl.methods.uniform import Uniform
from gear_rl.types import CreditAssigner

METHODS: dict[str, type[CreditAssigner]] = {
    cls.name: cls
    for cls in (
        Uniform,
        Gear,
        Rlsd,
        Serl,
        Rlcsd,
        DistilledRl,
        EntropyForks,
        FixedSpans,
        Shuffled,
        RandomOnsets,
    )
}
"""Every method by its name; a file of this folder that is missing here fails a test."""

__all__ = [
    "METHODS",
    "DistilledRl",
    "EntropyForks",
    "FixedSpans",
    "Gear",
    "RandomOnsets",
    "Rlcsd",
    "Rlsd",
    "Serl",
    "Shuffled",
    "Uniform",
]
