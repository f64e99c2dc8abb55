"""Settings of the credit pass in TRL, and whether the installed TRL can be worked with.

The method's own settings are the method's fields; TRL's are ``GRPOConfig``'s.
"""

# TRL and transformers are only partly typed; what crosses this seam is checked by the tests instead.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false

import copy
import inspect
import logging
import math
from dataclasses import dataclass, field
from typing import Any, get_args

import trl
from trl import GRPOConfig, GRPOTrainer  # pyright: ignore[reportPrivateImportUsage]

from gear_rl.signals.answers import check_pattern
from gear_rl.signals.contexts import NO_CONTRAST, check_sources
from gear_rl.signals.privileged import DEFAULT_HINT, DEFAULT_TEMPLATE, check_template
from gear_rl.signals.saliency import Layer, LossSpan, Readout
from gear_rl.signals.teacher import TeacherKind
from gear_rl.traits import engine_settings_of
from gear_rl.types import CreditAssigner

logger = logging.getLogger(__name__)

SUPPORTED_TRL = ((1, 14), (1, 17))
"""Releases that this adapter was run against: from the first, below the second."""
LOSS_TYPES = ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo", "vespo")
"""Losses that were run with advantages of shape (B, T)."""
_HOOKS: dict[str, tuple[str, ...]] = {
    "_generate": ("prompts",),
    "_generate_and_score_completions": ("inputs",),
    "_tokenize_prompts": ("prompts",),
    "_compute_loss": ("model", "inputs"),
    "_save_checkpoint": ("model", "trial"),
    "_load_optimizer_and_scheduler": ("checkpoint",),
    "_calculate_rewards": ("inputs", "prompts", "completions"),
    "_get_tool_suffix_ids": ("tool_messages",),
    "_log_completion_extra": ("column", "values"),
    "evaluation_loop": ("dataloader", "description"),
}


def incompatibilities(version: str | None = None, trainer: type | None = None) -> list[str]:
    """What of the installed TRL this adapter cannot work with, one sentence each; empty if nothing.

    >>> incompatibilities(version="0.9.1")
    ['trl 0.9.1 is not supported; install trl>=1.14,!=1.15.*,<1.17']
    """
    version = trl.__version__ if version is None else version
    trainer = GRPOTrainer if trainer is None else trainer
    lowest, beyond = SUPPORTED_TRL
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    wanted = f"install trl>={lowest[0]}.{lowest[1]},!=1.15.*,<{beyond[0]}.{beyond[1]}"
    # The loss of 1.15 needs Triton, so nothing of ours could be run with it.
    if not lowest <= numbers < beyond or numbers == (1, 15):
        return [f"trl {version} is not supported; {wanted}"]
    problems: list[str] = []
    for name, parameters in _HOOKS.items():
        hook = getattr(trainer, name, None)
        found = list(inspect.signature(hook).parameters)[1:] if callable(hook) else []
        if not callable(hook) or any(parameter not in found for parameter in parameters):
            problems.append(f"trl {version}: GRPOTrainer.{name}({', '.join(parameters)}) is gone; {wanted}")
    loss = getattr(trainer, "_compute_loss", None)
    if callable(loss) and "advantages.dim() == 1" not in inspect.getsource(loss):
        problems.append(f"trl {version}: the loss no longer takes advantages of shape (B, T); {wanted}")
    return problems


METHOD_SETTINGS: dict[str, Any] = {
    "teacher_model_kind": "live",
    "teacher_update_rate": 0.05,
    "teacher_sync_steps": 10,
    "teacher_contrast": NO_CONTRAST,
    "privileged_sources": ["environment", "row"],
    "success_reward": 1.0,
}
"""Settings that a method may bring with its ``engine_settings``, and their defaults where it does not."""

# Before anything below leans on a TRL that may not have it.
if incompatibilities():
    raise ImportError("\n".join(incompatibilities()))


@dataclass
class GEARConfig(GRPOConfig):
    """``GRPOConfig`` and the settings of the credit pass. The method's own settings are the method's fields."""

    _VALID_DICT_FIELDS = [*GRPOConfig._VALID_DICT_FIELDS, "teacher_chat_template_kwargs"]  # noqa: RUF012

    teacher_model_kind: str | None = field(
        default=None,
        metadata={
            "help": "Whose weights the teacher has: 'live' (the student's current ones), 'base' (those at the "
            "start; under PEFT the adapter is disabled), 'ema' (moving average) or 'sync' (a copy renewed every "
            "`teacher_sync_steps` steps). None for the method's own, else 'live'."
        },
    )
    teacher_update_rate: float | None = field(
        default=None,
        metadata={
            "help": "Share of the student that each step mixes into an 'ema' teacher. None for the method's own, "
            "else 0.05."
        },
    )
    teacher_sync_steps: int | None = field(
        default=None,
        metadata={
            "help": "Optimizer steps between two renewals of a 'sync' teacher. None for the method's own, else "
            "10."
        },
    )
    teacher_prompt: str = field(
        default="render",
        metadata={
            "help": "How the teacher sees the privileged context: 'render' (the template in the first user or "
            "system message, through the chat template) or 'splice' (its ids before the verbatim prompt ids)."
        },
    )
    teacher_prompt_template: str | None = field(
        default=None,
        metadata={
            "help": "Text with {privileged_context}, and with {prompt} for 'render'; None for the built-in one."
        },
    )
    teacher_chat_template_kwargs: dict[str, Any] | str | None = field(
        default=None,
        metadata={"help": "Chat template arguments of the teacher's prompt; None for the student's."},
    )
    privileged_column: str | None = field(
        default=None,
        metadata={
            "help": "Dataset column with the privileged context; None tries privileged_context, solution, "
            "answer, ground_truth in each row."
        },
    )
    privileged_sources: list[str] | None = field(
        default=None,
        metadata={
            "help": "Where the privileged context comes from, tried in order for each rollout: 'environment' "
            "(its privileged_context()), 'row' (a dataset column), 'sibling' (a successful rollout of the same "
            "group), 'feedback' (what a reward function logged as \"feedback\", else the tools' answers), "
            "'function'. None for the method's own, else environment, row."
        },
    )
    success_reward: float | None = field(
        default=None,
        metadata={
            "help": "Reward from which a rollout counts as a success (siblings, feedback, pass@k). None for the "
            "method's own, else 1."
        },
    )
    teacher_contrast: str | None = field(
        default=None,
        metadata={
            "help": "A wrong context whose signals are subtracted, so that the style of a hint cancels: "
            "'sibling' (a rollout of the group that failed), 'shuffled' (another group's context) or a dataset "
            "column. Costs another pass. 'none' for none; None for the method's own, else none."
        },
    )
    teacher_skip_first_tokens: int = field(
        default=0,
        metadata={
            "help": "Tokens at the start of every turn where the teacher is taken to agree: a thinking block "
            "that opens differently is no credit."
        },
    )
    answer_pattern: str | None = field(
        default=None,
        metadata={
            "help": "Regular expression whose first group (or whole match) is the completion's answer, for "
            "methods that ask what the answer hangs on; None tries \\boxed{...}, <answer>...</answer> and "
            "#### lines."
        },
    )
    answer_template: str = field(
        default="{privileged_context}",
        metadata={
            "help": "How the ground truth would be answered, for methods that ask how sure the student is of it "
            "before each turn; holds {privileged_context}."
        },
    )
    saliency_readout: str = field(
        default="mean",
        metadata={
            "help": "What of the answer a perturbation moves: 'mean' (softmax of its mean logits), 'last' (the "
            "last logits before it) or 'joint' (its log-likelihood)."
        },
    )
    saliency_layer: str = field(
        default="input",
        metadata={
            "help": "Whose activations the gradient of the answer is multiplied with: 'input' embeddings, or the "
            "hidden states of the 'first', 'middle' or 'last' layer."
        },
    )
    saliency_span: str = field(
        default="box",
        metadata={
            "help": "Over which tokens that gradient's loss goes: the 'box' (the answer and its delimiters) or "
            "its 'content'."
        },
    )
    saliency_noise: float = field(
        default=1e-3,
        metadata={
            "help": "Standard deviation of the noise on embeddings, for gradients of the answer's change."
        },
    )
    anchor_similarity: float = field(
        default=1.0,
        metadata={
            "help": "From which likeness of their texts, 0 to 1, two turns count as beginning in one state; 1 "
            "means the same text."
        },
    )
    transport_window_tokens: int = field(
        default=100, metadata={"help": "Tokens in a window whose hidden states are compared with siblings'."}
    )
    transport_stride_tokens: int = field(
        default=25, metadata={"help": "Tokens from the start of one such window to the next."}
    )
    tool_time_limit: float | None = field(
        default=30.0, metadata={"help": "Seconds after which a tool call is interrupted; None for no limit."}
    )
    tool_max_chars: int | None = field(
        default=20_000, metadata={"help": "Characters after which a tool's answer is cut; None for no limit."}
    )
    eval_greedy: bool = field(
        default=True, metadata={"help": "Solve each evaluation problem once more without sampling."}
    )
    credit_batch_size: int | None = field(
        default=None,
        metadata={
            "help": "Completions per forward of the credit pass; None for per_device_train_batch_size."
        },
    )
    student_pass: str = field(
        default="auto",
        metadata={
            "help": "Where the student's signals come from: 'auto' (forwards that TRL runs anyway, its old "
            "log-probabilities' or its loss's, wherever that gives the same: not with dropout, nor with absolute "
            "positions (GPT-2), which TRL counts from the padding on; else a pass of their own) or 'own' "
            "(always a pass of their own)."
        },
    )
    record_file: str | None = field(
        default=None,
        metadata={"help": "Where to write one JSON line per completion with its credit; None for nowhere."},
    )
    record_max_mb: float = field(
        default=32.0, metadata={"help": "Largest size of the record file in MB; the oldest records go first."}
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_method_settings()
        if self.teacher_prompt not in ("render", "splice"):
            raise ValueError(f"teacher_prompt: {self.teacher_prompt!r} is not one of render, splice")
        check_template(
            self.template,
            ("{privileged_context}",)
            if self.teacher_prompt == "splice"
            else ("{prompt}", "{privileged_context}"),
        )
        if self.loss_type not in LOSS_TYPES:
            raise ValueError(
                f"loss_type: {self.loss_type!r} was never run with one advantage per token and might broadcast "
                f"them silently; choose from {', '.join(LOSS_TYPES)}"
            )
        if self.use_liger_kernel and tuple(int(p) for p in trl.__version__.split(".")[:2]) < (1, 16):
            raise ValueError(
                "use_liger_kernel: its fused loss broadcasts one advantage per token silently in this TRL; set "
                "it to False or install trl>=1.16"
            )
        if self.teacher_skip_first_tokens < 0:
            raise ValueError(f"teacher_skip_first_tokens: {self.teacher_skip_first_tokens}; give 0 or more")
        if self.answer_pattern is not None:
            check_pattern(self.answer_pattern)
        if "{privileged_context}" not in self.answer_template:
            raise ValueError(
                f"answer_template: {self.answer_template!r} lacks {{privileged_context}}; add the placeholder"
            )
        for name, kind in (
            ("saliency_readout", Readout),
            ("saliency_layer", Layer),
            ("saliency_span", LossSpan),
        ):
            if getattr(self, name) not in get_args(kind):
                known = ", ".join(get_args(kind))
                raise ValueError(f"{name}: {getattr(self, name)!r} is not one of {known}")
        if not 0 < self.saliency_noise < math.inf:
            raise ValueError(
                f"saliency_noise: {self.saliency_noise}; give more than 0: without noise all is 0"
            )
        if not 0 < self.anchor_similarity <= 1:
            raise ValueError(f"anchor_similarity: {self.anchor_similarity}; give more than 0 and at most 1")
        for name in ("transport_window_tokens", "transport_stride_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: {getattr(self, name)}; give 1 token or more")
        if self.transport_stride_tokens > self.transport_window_tokens:
            raise ValueError(
                f"transport_stride_tokens: {self.transport_stride_tokens} is more than transport_window_tokens "
                f"({self.transport_window_tokens}), so tokens would fall between the windows; give as many or "
                "fewer"
            )
        if self.tool_time_limit is not None and self.tool_time_limit <= 0:
            raise ValueError(f"tool_time_limit: {self.tool_time_limit}; give seconds, or None for no limit")
        if self.tool_max_chars is not None and self.tool_max_chars < 1:
            raise ValueError(f"tool_max_chars: {self.tool_max_chars}; give 1 or more, or None for no limit")
        if self.student_pass not in ("auto", "own"):
            raise ValueError(f"student_pass: {self.student_pass!r} is not one of auto, own")
        if self.record_max_mb <= 0:
            raise ValueError(
                f"record_max_mb: {self.record_max_mb} leaves no room for a record; give more than 0"
            )
        if self.temperature <= 0:
            raise ValueError(f"temperature: {self.temperature} must be positive; greedy has no distribution")
        if self.credit_batch_size is not None and self.credit_batch_size < 1:
            raise ValueError(f"credit_batch_size: {self.credit_batch_size}; give 1 or more, or None")

    def _check_method_settings(self) -> None:
        """Those of ``METHOD_SETTINGS`` that are given."""
        kind, rate, steps = self.teacher_model_kind, self.teacher_update_rate, self.teacher_sync_steps
        if kind is not None and kind not in get_args(TeacherKind):
            raise ValueError(f"teacher_model_kind: {kind!r} is not one of {', '.join(get_args(TeacherKind))}")
        if self.privileged_sources is not None:
            check_sources([name for name in self.privileged_sources if name != "function"] or ["row"])
        if rate is not None and not 0.0 <= rate <= 1.0:
            raise ValueError(f"teacher_update_rate: {rate} is not a share; give 0 to 1")
        if steps is not None and steps < 1:
            raise ValueError(f"teacher_sync_steps: {steps}; give 1 step or more")

    def resolved(self, method: CreditAssigner) -> "GEARConfig":
        """A copy in which each of ``METHOD_SETTINGS`` has a value: the given one, the method's, or the default.

        What the method brought is logged. The object itself stays as it is, so it can serve another method too.
        Raises ``ValueError`` for a setting that no method may bring, or a value that is none of it.
        """
        published = engine_settings_of(method)
        for name in published:
            if name not in METHOD_SETTINGS:
                raise ValueError(
                    f"credit: engine_settings of {method.name!r} has {name!r}, which is no setting that a method "
                    f"may bring; choose from {', '.join(METHOD_SETTINGS)}"
                )
        found = copy.copy(self)
        left = [name for name in METHOD_SETTINGS if getattr(self, name) is None]
        applied = {name: published[name] for name in left if published.get(name) is not None}
        for name in left:
            value = applied.get(name, METHOD_SETTINGS[name])
            setattr(found, name, list(value) if name == "privileged_sources" else value)
        try:
            found._check_method_settings()
        except (TypeError, ValueError) as error:
            raise ValueError(f"credit: engine_settings of {method.name!r}: {error}") from None
        if applied and self.process_index == 0:
            shown = ", ".join(f"{name}={value}" for name, value in applied.items())
            logger.info("%s: %s, as published; set them to change", method.name, shown)
        return found

    @property
    def template(self) -> str:
        """The teacher's template, given or built in."""
        if self.teacher_prompt_template is not None:
            return self.teacher_prompt_template
        return DEFAULT_HINT if self.teacher_prompt == "splice" else DEFAULT_TEMPLATE
