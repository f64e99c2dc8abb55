"""Spreads the advantage of a GRPO completion over its tokens: a variant of GEAR, and other methods.

Names are imported on first use, so that ``gear --help`` does not wait for torch, and the package works without
TRL until its engine is needed.

>>> from gear_rl import METHODS
>>> METHODS["rlsd"](strength=0.5).needs
('student_logprob', 'teacher_logprob')
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gear_rl.credit.contexts import Rollout as Rollout
    from gear_rl.credit.credit_config import CreditConfig as CreditConfig
    from gear_rl.credit.own_loop import LocalEngine as LocalEngine
    from gear_rl.credit.own_loop import token_advantages as token_advantages
    from gear_rl.engines.trl import GEARConfig as GEARConfig
    from gear_rl.engines.trl import GEARTrainer as GEARTrainer
    from gear_rl.methods import METHODS as METHODS
    from gear_rl.methods import Gear as Gear
    from gear_rl.methods import RandomOnsets as RandomOnsets
    from gear_rl.methods import Rlsd as Rlsd
    from gear_rl.methods import Shuffled as Shuffled
    from gear_rl.methods import Uniform as Uniform
    from gear_rl.model.served import ServedTeacher as ServedTeacher
    from gear_rl.model.teacher import make_teacher as make_teacher
    from gear_rl.tensor.advantage import group_relative_advantage as group_relative_advantage
    from gear_rl.traits import Scheduled as Scheduled
    from gear_rl.types import Credit as Credit
    from gear_rl.types import CreditAssigner as CreditAssigner
    from gear_rl.types import TokenSignals as TokenSignals

__version__ = "0.1.0"

_HOME = {
    "credit.contexts": ("Rollout",),
    "credit.credit_config": ("CreditConfig",),
    "credit.own_loop": ("LocalEngine", "token_advantages"),
    "engines.trl": ("GEARConfig", "GEARTrainer"),
    "methods": ("METHODS", "Gear", "RandomOnsets", "Rlsd", "Shuffled", "Uniform"),
    "model.served": ("ServedTeacher",),
    "model.teacher": ("make_teacher",),
    "tensor.advantage": ("group_relative_advantage",),
    "traits": ("Scheduled",),
    "types": ("Credit", "CreditAssigner", "TokenSignals"),
}


def __getattr__(name: str) -> Any:
    for module, names in _HOME.items():
        if name in names:
            return getattr(import_module(f"gear_rl.{module}"), name)
    every = ", ".join(name for names in _HOME.values() for name in names)
    raise AttributeError(f"module 'gear_rl' has no attribute {name!r}; it has {every}")
