"""The settings of ``GEARTrainer``, and whether the installed TRL can be worked with."""

import inspect
import logging
from dataclasses import dataclass, field

import trl
from trl import GRPOConfig, GRPOTrainer  # pyright: ignore[reportPrivateImportUsage]

from gear_rl.credit.config import CreditConfig

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
    "_get_output_dir": ("trial",),
    "_push_from_checkpoint": ("checkpoint_folder",),
    "_get_train_sampler": ("dataset",),
    "_init_training_state": ("max_steps", "num_update_steps_per_epoch", "num_train_epochs"),
    "_get_grad_norm": ("model", "grad_norm"),
    "training_step": ("model", "inputs", "num_items_in_batch"),
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
        known = list(inspect.signature(hook).parameters)[1:] if callable(hook) else []
        if not callable(hook) or any(parameter not in known for parameter in parameters):
            problems.append(f"trl {version}: GRPOTrainer.{name}({', '.join(parameters)}) is gone; {wanted}")
    # A loss that unsqueezes (B, T) would broadcast without an error, and only its source says which it is.
    loss = getattr(trainer, "_compute_loss", None)
    if callable(loss) and "advantages.dim() == 1" not in inspect.getsource(loss):
        problems.append(f"trl {version}: the loss no longer takes advantages of shape (B, T); {wanted}")
    return problems


# Before anything below leans on a TRL that may not have it.
if incompatibilities():
    raise ImportError("\n".join(incompatibilities()))


@dataclass
class GEARConfig(CreditConfig, GRPOConfig):
    """``GRPOConfig``, the settings of the credit step, and what TRL alone has beside them.

    The method's own settings are the method's fields.

    >>> GEARConfig("out", use_cpu=True, teacher_model_kind="ema", num_generations=4).teacher_model_kind
    'ema'
    >>> GEARConfig("out", use_cpu=True, teacher_model_kind="emma")
    Traceback (most recent call last):
    ValueError: teacher_model_kind: 'emma' is not one of live, base, ema, sync
    """

    _VALID_DICT_FIELDS = [*GRPOConfig._VALID_DICT_FIELDS, "teacher_chat_template_kwargs"]  # noqa: RUF012

    tool_time_limit: float | None = field(
        default=30.0, metadata={"help": "Seconds after which a tool call is interrupted; None for no limit."}
    )
    tool_max_chars: int | None = field(
        default=20_000, metadata={"help": "Characters after which a tool's answer is cut; None for no limit."}
    )
    eval_greedy: bool = field(
        default=True, metadata={"help": "Solve each evaluation problem once more without sampling."}
    )
    teacher_model: str | None = field(
        default=None,
        metadata={
            "help": "A model whose weights the teacher has in place of the student's: a folder (of an adapter "
            "too) or a hub name, over the same vocabulary. None for `teacher_model_kind`."
        },
    )
    teacher_check_steps: int = field(
        default=5,
        metadata={
            "help": "Steps between two checks that the teacher reads its own privileged context "
            "(gear/teacher/informed, likelier): a few completions are scored with two others' too. 0 for none."
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
    resume_anyway: bool = field(
        default=False,
        metadata={"help": "Resume from a checkpoint of another configuration; the run goes on as a new one."},
    )
    overwrite_output_dir: bool = field(
        default=False,
        metadata={
            "help": "Delete the checkpoints and records of the run that output_dir holds, to begin anew there."
        },
    )
    non_finite_step: str = field(
        default="stop",
        metadata={
            "help": "What happens at a step whose loss or gradient is not finite: 'stop' the run before a weight "
            "changes, or 'skip' the step."
        },
    )

    def __post_init__(self) -> None:
        GRPOConfig.__post_init__(self)
        self.check()
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
        if self.tool_time_limit is not None and self.tool_time_limit <= 0:
            raise ValueError(f"tool_time_limit: {self.tool_time_limit}; give seconds, or None for no limit")
        if self.tool_max_chars is not None and self.tool_max_chars < 1:
            raise ValueError(f"tool_max_chars: {self.tool_max_chars}; give 1 or more, or None for no limit")
        if self.teacher_check_steps < 0:
            raise ValueError(f"teacher_check_steps: {self.teacher_check_steps}; give 0 or more")
        if self.temperature <= 0:
            raise ValueError(f"temperature: {self.temperature} must be positive; greedy has no distribution")
        for name, known in (("student_pass", ("auto", "own")), ("non_finite_step", ("stop", "skip"))):
            if (value := getattr(self, name)) not in known:
                raise ValueError(f"{name}: {value!r} is not one of {', '.join(known)}")
