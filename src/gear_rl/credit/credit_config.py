"""The settings of the credit step, declared once for every engine.

A method's own settings are the method's fields, an engine's are the engine's.
"""

import copy
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from inspect import get_annotations
from typing import Any, Literal, TypeVar

from gear_rl.model.teacher import TeacherKind
from gear_rl.records import RECORDS
from gear_rl.settings import Count, Positive, Share, Whole, check_settings, setting_field
from gear_rl.signals.answers import check_pattern
from gear_rl.traits import engine_settings_of
from gear_rl.types import CreditAssigner

logger = logging.getLogger(__name__)
C = TypeVar("C", bound="CreditConfig")

PRIVILEGED_COLUMNS = ("privileged_context", "solution", "answer", "ground_truth")
"""Where a dataset row may hold the privileged context, in the order in which they are tried."""

SOURCES = ("environment", "row", "sibling", "feedback", "prompt", "function")
"""Where a privileged context may come from."""
CONTRASTS = ("sibling", "shuffled")
NO_CONTRAST = "none"
"""Wrong contexts that are made from the batch; any other name is a column of the dataset."""

DEFAULT_TEMPLATE = (
    "{prompt}\n\nHere is a reference solution:\n{privileged_context}\n\n"
    "Solve the problem in your own words, step by step."
)
"""How the teacher is shown the privileged context by default (ours; the paper's is unknown)."""

DEFAULT_HINT = "Reference solution for the problem below:\n{privileged_context}\n\n"
"""The text whose ids are spliced before the student's prompt by default."""


METHOD_SETTINGS: dict[str, Any] = {
    "teacher_model_kind": "live",
    "teacher_update_rate": 0.05,
    "teacher_sync_steps": 10,
    "teacher_contrast": NO_CONTRAST,
    "privileged_sources": ["environment", "row"],
    "success_reward": 1.0,
}
"""Settings that a method may set with its ``engine_settings``, and their defaults where it does not."""


def _method_setting(name: str, help: str) -> Any:
    """The field of one of ``METHOD_SETTINGS``."""
    return setting_field(None, f"{help} None for the method's own, else {METHOD_SETTINGS[name]}.")


@dataclass(kw_only=True)
class CreditConfig:
    """Every setting of the credit step; the description of each is its ``help``.

    ``GEARConfig`` inherits them. ``resolved`` fills those of ``METHOD_SETTINGS`` that are None. Raises
    ``ValueError`` that names the setting for a value of another type or outside its range.

    >>> CreditConfig(teacher_skip_first_tokens=-1)
    Traceback (most recent call last):
    gear_rl.errors.InputError: teacher_skip_first_tokens: -1; give a whole number of 0 or more
    """

    teacher_model_kind: TeacherKind | None = _method_setting(
        "teacher_model_kind",
        "Whose weights the teacher has: 'live' (the student's current ones), 'base' (those at the "
        "start), 'ema' (moving average) or 'sync' (a copy renewed every `teacher_sync_steps` steps).",
    )
    teacher_update_rate: Share | None = _method_setting(
        "teacher_update_rate", "Share of the student that each step mixes into an 'ema' teacher."
    )
    teacher_sync_steps: Count | None = _method_setting(
        "teacher_sync_steps", "Optimizer steps between two renewals of a 'sync' teacher."
    )
    teacher_prompt: Literal["render", "splice"] = setting_field(
        "render",
        "How the teacher sees the privileged context: 'render' (the template in a user message, else a system "
        "message, through the chat template) or 'splice' (its ids before the verbatim prompt ids).",
    )
    teacher_prompt_template: str | None = setting_field(
        None,
        "Text with {privileged_context}, and with {prompt} for 'render'; None for the built-in one.",
    )
    teacher_context_message: Literal["first", "last"] | None = setting_field(
        None,
        "Which of several user messages of a prompt holds the privileged context with 'render': 'first' or "
        "'last'. None for the first, with a warning.",
    )
    teacher_chat_template_kwargs: dict[str, Any] | str | None = setting_field(
        None,
        "Chat template arguments of the teacher's prompt; None for the student's.",
    )
    privileged_column: str | None = setting_field(
        None,
        "Dataset column with the privileged context; None tries privileged_context, solution, "
        "answer, ground_truth in each row.",
    )
    privileged_sources: list[str] | None = _method_setting(
        "privileged_sources",
        "Where the privileged context comes from, tried in order for each rollout: 'environment' "
        "(its privileged_context()), 'row' (a dataset column), 'sibling' (a successful rollout of the same "
        "group), 'feedback' (what a reward function logged as \"feedback\", else the tools' answers), "
        "'prompt' (nothing but the student's own prompt), 'function'.",
    )
    max_privileged_tokens: Count | None = setting_field(
        16384,
        "Longest privileged context in tokens; a completion with a longer one keeps its GRPO advantage "
        "(gear/fallback/long_context), as does one that would not fit into the model's positions with prompt and "
        "context. None for the positions alone.",
    )
    success_reward: float | None = _method_setting(
        "success_reward", "Reward from which a rollout counts as a success (siblings, feedback, pass@k)."
    )
    teacher_contrast: str | None = _method_setting(
        "teacher_contrast",
        "A wrong context whose signals are subtracted, so that the style of a hint cancels: "
        "'sibling' (a rollout of the group that failed), 'shuffled' (another group's context) or a dataset "
        "column. Costs another pass. 'none' for none.",
    )
    teacher_skip_first_tokens: Whole = setting_field(
        0,
        "Tokens at the start of every turn where the teacher is taken to agree: a thinking block "
        "that opens differently is no credit.",
    )
    answer_pattern: str | None = setting_field(
        None,
        "Regular expression whose first group (or whole match) is the completion's answer, for "
        "methods that read what the answer depends on; None tries \\boxed{...}, <answer>...</answer> "
        "and #### lines.",
    )
    credit_batch_size: Count | None = setting_field(
        None,
        "Completions per forward of the credit pass; None for per_device_train_batch_size.",
    )
    record_file: str | None = setting_field(
        RECORDS,
        "Where to write one JSON line per completion with its credit, relative to the run's folder "
        "(`output_dir`; verl's trainer.default_local_dir). A file outside of it must be new: nothing there is "
        "replaced. None for nowhere.",
    )
    record_max_mb: Positive = setting_field(
        32.0,
        "Largest size of the record file in MB; the oldest records go first.",
    )

    def __post_init__(self) -> None:
        self.check()

    def check(self) -> None:
        """Raise ``ValueError`` that names the first setting of another type or outside its range."""
        bases = [base for base in type(self).__mro__ if issubclass(base, CreditConfig)]
        check_settings(self, [name for base in reversed(bases) for name in get_annotations(base)])
        if self.privileged_sources is not None:
            check_sources([name for name in self.privileged_sources if name != "function"] or ["row"])
        for name in ("{prompt}", "{privileged_context}"):
            needed = self.teacher_prompt == "render" or name == "{privileged_context}"
            if needed and name not in self.template:
                raise ValueError(f"teacher_prompt_template: {self.template!r} lacks {name}; add it")
        if self.answer_pattern is not None:
            check_pattern(self.answer_pattern)

    def resolved(self: C, method: CreditAssigner, *, announce: bool = True) -> C:
        """A copy in which each of ``METHOD_SETTINGS`` has a value: the given one, the method's, or the default.

        The method's values are logged if ``announce`` is True. Raises ``ValueError`` for a setting that no method
        may set, or a wrong value.
        """
        declared = engine_settings_of(method)
        for name in declared:
            if name not in METHOD_SETTINGS:
                raise ValueError(
                    f"credit: engine_settings of {method.name!r} has {name!r}, which a method may not set; "
                    f"choose from {', '.join(METHOD_SETTINGS)}"
                )
        resolved = copy.copy(self)
        left = [name for name in METHOD_SETTINGS if getattr(self, name) is None]
        applied = {name: declared[name] for name in left if declared.get(name) is not None}
        for name in left:
            value = applied.get(name, METHOD_SETTINGS[name])
            setattr(resolved, name, list(value) if name == "privileged_sources" else value)
        try:
            resolved.check()
        except (TypeError, ValueError) as error:
            raise ValueError(f"credit: engine_settings of {method.name!r}: {error}") from None
        if applied and announce:
            shown = ", ".join(f"{name}={value}" for name, value in applied.items())
            logger.info("%s sets %s (the default of this method)", method.name, shown)
        return resolved

    @property
    def template(self) -> str:
        """The teacher's template, given or built in."""
        if self.teacher_prompt_template is not None:
            return self.teacher_prompt_template
        return DEFAULT_HINT if self.teacher_prompt == "splice" else DEFAULT_TEMPLATE


def check_sources(sources: Sequence[str], has_function: bool = False) -> None:
    """Raise ``ValueError`` that names an unknown source or a missing function.

    >>> check_sources(["row", "oracle"])
    Traceback (most recent call last):
    ValueError: privileged_sources: 'oracle' is not one of environment, row, sibling, feedback, prompt, function
    """
    for source in sources:
        if source not in SOURCES:
            raise ValueError(f"privileged_sources: {source!r} is not one of {', '.join(SOURCES)}")
    if not sources:
        raise ValueError(f"privileged_sources: empty; give one or more of {', '.join(SOURCES)}")
    if "function" in sources and not has_function:
        raise ValueError("privileged_sources: 'function' needs a function; give one as `privileged`")


def check_teacher(config: CreditConfig) -> None:
    """Raise ``ValueError`` for a teacher that is the student: its own weights, and the student's prompt.

    >>> check_teacher(CreditConfig(privileged_sources=["prompt"], teacher_model_kind="live"))
    Traceback (most recent call last):
    ValueError: teacher_model_kind: 'live' with privileged_sources ['prompt'] is the student itself; give base
    """
    if config.teacher_model_kind == "live" and config.privileged_sources == ["prompt"]:
        raise ValueError(
            "teacher_model_kind: 'live' with privileged_sources ['prompt'] is the student itself; give base"
        )
