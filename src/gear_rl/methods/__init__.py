"""The catalogue: one file per method, one line per file. Knows no forward pass and no engine."""

from gear_rl.methods.agent_opsd import AgentOpsd
from gear_rl.methods.antisd import AntiSd
from gear_rl.methods.cast import Cast
from gear_rl.methods.crpo import Crpo
from gear_rl.methods.distilled_rl import DistilledRl
from gear_rl.methods.entropy_forks import EntropyForks
from gear_rl.methods.fixed_spans import FixedSpans
from gear_rl.methods.gear import Gear
from gear_rl.methods.gigpo import Gigpo
from gear_rl.methods.grail import Grail
from gear_rl.methods.igpo import Igpo
from gear_rl.methods.mixed import Mixed
from gear_rl.methods.mt_grpo import MtGrpo
from gear_rl.methods.oar import OarG, OarP
from gear_rl.methods.opsd import Opsd
from gear_rl.methods.raft import Raft
from gear_rl.methods.random_onsets import RandomOnsets
from gear_rl.methods.rlcsd import Rlcsd
from gear_rl.methods.rlsd import Rlsd
from gear_rl.methods.sc_grpo import ScGrpo
from gear_rl.methods.sdpg import Sdpg
from gear_rl.methods.sdpo import Sdpo
from gear_rl.methods.serl import Serl
from gear_rl.methods.shear import Shear
from gear_rl.methods.shuffled import Shuffled
from gear_rl.methods.stare import Stare
from gear_rl.methods.step_scores import StepScores
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
        ScGrpo,
        DistilledRl,
        Cast,
        AntiSd,
        EntropyForks,
        Stare,
        FixedSpans,
        OarP,
        OarG,
        Grail,
        Shear,
        Gigpo,
        MtGrpo,
        Igpo,
        StepScores,
        AgentOpsd,
        Crpo,
        Opsd,
        Sdpo,
        Sdpg,
        Raft,
        Mixed,
        Shuffled,
        RandomOnsets,
    )
}
"""Every method by its name; a file of this folder that is missing here fails a test."""


__all__ = [
    "METHODS",
    "AgentOpsd",
    "AntiSd",
    "Cast",
    "Crpo",
    "DistilledRl",
    "EntropyForks",
    "FixedSpans",
    "Gear",
    "Gigpo",
    "Grail",
    "Igpo",
    "Mixed",
    "MtGrpo",
    "OarG",
    "OarP",
    "Opsd",
    "Raft",
    "RandomOnsets",
    "Rlcsd",
    "Rlsd",
    "ScGrpo",
    "Sdpg",
    "Sdpo",
    "Serl",
    "Shear",
    "Shuffled",
    "Stare",
    "StepScores",
    "Uniform",
]
