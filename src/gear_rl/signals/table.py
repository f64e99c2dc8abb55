"""The signals that ``needs`` may name by a string. One that is used as an object needs no line here."""

from gear_rl.signals.answers import AnswerRegion
from gear_rl.signals.confidence import AnswerConfidence
from gear_rl.signals.passes import ReferenceLogprob
from gear_rl.signals.saliency import AnswerActivation, AnswerGradient, AnswerOcclusion
from gear_rl.signals.signal import FOLD_SIGNALS, GroupB, RewardB, RewardsBR, SuccessB, TokenId
from gear_rl.signals.text_units import LineId, SentenceId
from gear_rl.signals.transport import TransportDistance
from gear_rl.signals.turns import AnchorId, TurnReward
from gear_rl.types import Signal

SIGNALS: dict[str, Signal] = {
    signal.name: signal
    for signal in (
        *FOLD_SIGNALS,
        ReferenceLogprob(),
        AnswerRegion(),
        AnswerOcclusion(),
        AnswerGradient(),
        AnswerActivation(),
        AnswerConfidence(),
        TransportDistance(),
        TokenId(),
        GroupB(),
        RewardB(),
        RewardsBR(),
        SuccessB(),
        TurnReward(),
        AnchorId(),
        SentenceId(),
        LineId(),
    )
}
"""Each at its default settings."""
