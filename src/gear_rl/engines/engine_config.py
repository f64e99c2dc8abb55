"""The settings that both engines have beside those of the credit step."""

from dataclasses import dataclass

from gear_rl.credit.credit_config import CreditConfig
from gear_rl.settings import Count, Positive, setting_field


@dataclass(kw_only=True)
class EngineConfig(CreditConfig):
    """``CreditConfig``, the limits of tools, and a teacher of other weights.

    >>> EngineConfig(tool_max_chars=0)
    Traceback (most recent call last):
    gear_rl.errors.InputError: tool_max_chars: 0; give a whole number of 1 or more, or None
    """

    tool_time_limit: Positive | None = setting_field(
        30.0, "Seconds after which a tool call is interrupted; None for no limit."
    )
    tool_max_chars: Count | None = setting_field(
        20_000, "Characters after which a tool's answer is cut; None for no limit."
    )
    teacher_model: str | None = setting_field(
        None,
        "A model whose weights the teacher has in place of the student's: a folder (of an adapter too) or a hub "
        "name, over the same vocabulary. None for `teacher_model_kind`.",
    )
