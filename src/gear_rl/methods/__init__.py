"""The catalogue: one file per method, one line per file. Knows no forward pass and no engine."""

from gear_rl.methods.agent_opsd import AgentOpsd as AgentOpsd
from gear_rl.methods.antisd import AntiSd as AntiSd
from gear_rl.methods.cast import Cast as Cast
from gear_rl.methods.crpo import Crpo as Crpo
from gear_rl.methods.distilled_rl import DistilledRl as DistilledRl
from gear_rl.methods.entropy_forks import EntropyForks as EntropyForks
from gear_rl.methods.fixed_spans import FixedSpans as FixedSpans
from gear_rl.methods.gear import Gear as Gear
from gear_rl.methods.gigpo import Gigpo as Gigpo
from gear_rl.methods.grail import Grail as Grail
from gear_rl.methods.igpo import Igpo as Igpo
from gear_rl.methods.mixed import Mixed as Mixed
from gear_rl.methods.mt_grpo import MtGrpo as MtGrpo
from gear_rl.methods.oar import OarG as OarG
from gear_rl.methods.oar import OarP as OarP
from gear_rl.methods.opsd import Opsd as Opsd
from gear_rl.methods.raft import Raft as Raft
from gear_rl.methods.random_onsets import RandomOnsets as RandomOnsets
from gear_rl.methods.rlcsd import Rlcsd as Rlcsd
from gear_rl.methods.rlsd import Rlsd as Rlsd
from gear_rl.methods.sc_grpo import ScGrpo as ScGrpo
from gear_rl.methods.sdpg import Sdpg as Sdpg
from gear_rl.methods.sdpo import Sdpo as Sdpo
from gear_rl.methods.serl import Serl as Serl
from gear_rl.methods.shear import Shear as Shear
from gear_rl.methods.shuffled import Shuffled as Shuffled
from gear_rl.methods.stare import Stare as Stare
from gear_rl.methods.step_scores import StepScores as StepScores
from gear_rl.methods.uniform import Uniform as Uniform
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
