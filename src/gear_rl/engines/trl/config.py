"""The settings of ``GEARTrainer``, and those that it refuses: losses that lose credit, and what was never run."""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, cast

import trl
from datasets import Dataset
from transformers.trainer_utils import HubStrategy
from trl import GRPOConfig  # pyright: ignore[reportPrivateImportUsage]

from gear_rl.credit.contexts import PrivilegedFunction, privileged_context, sources_of
from gear_rl.credit.credit_config import (
    CONTRASTS,
    NO_CONTRAST,
    PRIVILEGED_COLUMNS,
    check_sources,
    check_teacher,
)
from gear_rl.engines.engine_config import EngineConfig
from gear_rl.engines.folder import RunFolder
from gear_rl.engines.trl.release import check_trl
from gear_rl.environments import has_privileged_context
from gear_rl.errors import did_you_mean
from gear_rl.settings import Positive, Whole, setting_field
from gear_rl.signals.passes import PassSignal, ReferenceLogprob, check_served
from gear_rl.signals.signal import names_of
from gear_rl.signals.table import needs_context, needs_passes, signals_of
from gear_rl.traits import distillation_of, is_even
from gear_rl.types import CreditAssigner

logger = logging.getLogger(__name__)

LOSS_TYPES = ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo", "vespo")
"""Losses that were run with advantages of shape (B, T)."""
CONSTANT_RATIO_LOSSES = ("cispo", "vespo")
"""Losses whose ratio carries no gradient: they keep token credit even with one ratio per completion
(measured in ``docs/engines.md``)."""
SHARDED = ("FSDP", "DEEPSPEED")
"""accelerate's names for weights that are divided among processes."""
COUNTED_ROWS = 100_000
"""Rows of the dataset whose privileged contexts are counted before the training."""


check_trl(trl.__version__)


@dataclass
class GEARConfig(EngineConfig, GRPOConfig):
    """``GRPOConfig``, the settings of the credit step, and what TRL alone has beside them.

    >>> GEARConfig("out", use_cpu=True, teacher_model_kind="emma")
    Traceback (most recent call last):
    gear_rl.errors.InputError: teacher_model_kind: 'emma'; give live, base, ema or sync, or None
    """

    _VALID_DICT_FIELDS = [*GRPOConfig._VALID_DICT_FIELDS, "teacher_chat_template_kwargs"]  # noqa: RUF012

    chat_template_path: str | None = setting_field(
        None,
        "The chat template in place of the tokenizer's: a file, a folder with one, or the name of one of TRL's. "
        "For rollouts with tools by a model whose own template shows none, such as qwen3_instruct_2507.",
    )
    teacher_url: str | None = setting_field(
        None,
        "Address of a vLLM server whose model is the teacher, as http://localhost:8000, over the student's "
        "vocabulary. It gives log-probabilities of single tokens, so methods that need more are refused.",
    )
    teacher_top_k: Whole = setting_field(
        0,
        "Likeliest tokens of the teacher of teacher_url from which a divergence is estimated; 0 for none, which "
        "refuses methods that need a divergence.",
    )
    teacher_url_timeout: Positive = setting_field(60.0, "Seconds that an answer of teacher_url may take.")
    teacher_url_failure: Literal["skip", "stop"] = setting_field(
        "skip",
        "What happens to a completion that teacher_url does not answer for: 'skip' (it keeps its GRPO advantage) "
        "or 'stop' the run.",
    )
    eval_greedy: bool = setting_field(True, "Solve each evaluation problem once more without sampling.")
    teacher_check_steps: Whole = setting_field(
        5,
        "Steps between two checks that the teacher reads its own privileged context (gear/teacher/informed, "
        "likelier): a few completions are scored with two others' too. 0 for none.",
    )
    resume_anyway: bool = setting_field(
        False, "Resume from a checkpoint of another configuration; the run goes on as a new one."
    )
    overwrite_output_dir: bool = setting_field(
        False, "Delete the checkpoints and records of the run that output_dir holds, to begin anew there."
    )
    non_finite_step: Literal["stop", "skip"] = setting_field(
        "stop",
        "What happens at a step whose loss or gradient is not finite: 'stop' the run before a weight changes, or "
        "'skip' the step.",
    )

    def __new__(cls, *args: Any, **given: Any) -> "GEARConfig":
        for name in given.keys() - {field.name for field in fields(cls)}:
            raise TypeError(f"{name}: no such setting; {did_you_mean(name, [f.name for f in fields(cls)])}")
        return super().__new__(cls)

    def __post_init__(self) -> None:
        try:
            GRPOConfig.__post_init__(self)
        except ValueError as error:
            if "divisible by num_generations" not in str(error):
                raise
            raise ValueError(
                f"num_generations: {self.num_generations} does not divide the {self.generation_batch_size} "
                "completions that are generated together (per_device_train_batch_size x processes x "
                f"steps_per_generation); change one of them. TRL says: {error}"
            ) from None
        self.check()
        if self.loss_type not in LOSS_TYPES:
            raise ValueError(
                f"loss_type: {self.loss_type!r} was never run with one advantage per token and might broadcast "
                f"them silently; choose from {', '.join(LOSS_TYPES)}"
            )
        if self.use_vllm and self.vllm_mode not in ("colocate", "server"):
            raise ValueError(f"vllm_mode: {self.vllm_mode!r}; give colocate or server")
        if self.use_liger_kernel and trl.__version__.startswith("1.14."):
            raise ValueError(
                "use_liger_kernel: its fused loss broadcasts one advantage per token silently in this TRL; set "
                "it to False or install trl>=1.16"
            )
        if self.temperature <= 0:
            raise ValueError(f"temperature: {self.temperature} must be positive; greedy has no distribution")


def checked_arguments(
    args: Any,
    credit: CreditAssigner,
    privileged: PrivilegedFunction | None,
    dataset: Any,
    options: Mapping[str, Any],
) -> GEARConfig:
    """The settings, with the method's own where none were given; ``ValueError`` for what cannot train.

    Runs before anything is loaded. ``options`` are the other arguments of ``GRPOTrainer``.

    >>> from gear_rl.methods.gear import Gear
    >>> checked_arguments(GEARConfig("out", use_cpu=True), Gear(), None, None, {}).teacher_model_kind
    'base'
    """
    given = GEARConfig("gear-output") if args is None else args
    if not isinstance(given, GEARConfig):
        raise ValueError(
            f"args: {type(args).__name__} has no settings of the credit step; give a GEARConfig, which takes "
            "the same arguments and more"
        )
    args = given.resolved(credit, announce=False)
    reads_context = needs_context(credit)
    if args.teacher_prompt == "render" and options.get("rollout_func") is not None and reads_context:
        raise ValueError(
            "teacher_prompt: 'render' cannot repeat the prompt that a rollout_func builds; set it to 'splice'"
        )
    if args.teacher_model is not None and given.teacher_model_kind is not None:
        raise ValueError(
            f"teacher_model_kind: {given.teacher_model_kind!r} names the teacher's weights, and so does "
            "teacher_model; leave one of them out"
        )
    if args.teacher_url is not None:
        _check_served_teacher(credit, args, given.teacher_model_kind)
    if args.teacher_model is not None and distillation_of(credit) is not None:
        raise ValueError(
            f"teacher_model: credit {credit.name!r} distils its teacher in the loss, which was never run with "
            "another model; leave it out, or take a method that reweights, such as 'gear'"
        )
    if reads_context and args.teacher_model is None and args.teacher_url is None:
        check_teacher(args)
    check_loss(credit, args.loss_type, args.importance_sampling_level, args.off_policy_mask_threshold)
    sources = sources_of(args, privileged)
    check_sources(sources, privileged is not None)
    if reads_context and dataset is not None:
        _report_contexts(dataset, args, sources, options.get("environment_factory"), credit.name)
    return given.resolved(credit, announce=given.process_index == 0)  # said once nothing was refused


def _check_served_teacher(credit: CreditAssigner, args: GEARConfig, kind: str | None) -> None:
    for name, value in (("teacher_model", args.teacher_model), ("teacher_model_kind", kind)):
        if value is not None:
            raise ValueError(
                f"{name}: {value!r} names the teacher's weights, and so does teacher_url; leave one of them out"
            )
    if distillation_of(credit) is not None:
        raise ValueError(
            f"teacher_url: credit {credit.name!r} distils the whole vocabulary of its teacher in the loss, and a "
            "server gives log-probs of single tokens; take its form sampled=true, or a method that reweights"
        )
    check_served(signals_of(credit.needs), args.teacher_top_k, credit.name)


def check_loss(
    credit: CreditAssigner,
    loss_type: str,
    level: str = "token",
    off_policy_mask_threshold: float | None = None,
) -> None:
    """Refuse a loss that loses a completion's token credit, or misreads its signs; ``ValueError``.

    With one importance ratio per completion (``level`` "sequence", GSPO, arXiv:2507.18071) most losses multiply
    that ratio by the sum of the advantages: only an even method loses nothing. The off-policy mask
    (DeepSeek-V3.2) and VESPO read a completion's sign, which differs from token to token in an additive method.
    PPO's clip and SAPO's temperature are rules for a token and its own ratio.

    >>> from gear_rl.methods.gear import Gear
    >>> check_loss(Gear(), "grpo", "sequence")
    Traceback (most recent call last):
    ValueError: importance_sampling_level: 'sequence' with loss_type 'grpo' gives all tokens of a completion the
    same gradient, so the token credit of 'gear' would be lost; set it to 'token', or use credit 'uniform'
    """
    if level != "token" and loss_type not in CONSTANT_RATIO_LOSSES and not is_even(credit):
        raise ValueError(
            f"importance_sampling_level: {level!r} with loss_type {loss_type!r} gives all tokens of a completion "
            f"the same gradient, so the token credit of {credit.name!r} would be lost; set it to 'token', or use "
            "credit 'uniform'"
        )
    # Not `is_additive`: the term of a distilling method does not pass through the advantage.
    if not getattr(credit, "additive", False):
        return
    if loss_type == "vespo":
        rule, fix = "loss_type: 'vespo' weighs", "take another loss_type"
    elif off_policy_mask_threshold is not None:
        rule, fix = f"off_policy_mask_threshold: {off_policy_mask_threshold} drops", "set it to None"
    else:
        return
    raise ValueError(
        f"{rule} a completion by the sign of its advantage, but with credit {credit.name!r} its tokens may "
        f"differ in sign; {fix}, or use a method that only reweights, such as 'gear'"
    )


def check_rows(rows: Any, args: GEARConfig, *, positions: int | None = None) -> None:
    """``ValueError`` for fewer rows than a batch takes: TRL's sampler drops those, and nothing would train.

    Also for completions that are longer than the model's ``positions``. A stream has no length.
    """
    longest = args.max_completion_length
    if positions is not None and longest is not None and longest >= positions:
        raise ValueError(
            f"max_completion_length: {longest} tokens, and the model has {positions} positions for prompt and "
            "completion together; give fewer"
        )
    prompts = cast(int, args.generation_batch_size) // cast(int, args.num_generations)
    if isinstance(rows, Sized) and len(rows) < prompts:
        raise ValueError(
            f"train_dataset: {len(rows)} rows, and a batch takes {prompts} prompts; give more rows, or a smaller "
            "per_device_train_batch_size"
        )


def is_transformed(dataset: Any) -> bool:
    """Whether a function of the user's makes the rows of a dataset as they are read (``set_transform``)."""
    return isinstance(dataset, Dataset) and dataset.format["type"] == "custom"


def check_setup(
    credit: CreditAssigner,
    args: GEARConfig,
    *,
    num_generations: int,
    sharding: str = "NO",
    zero_stage: int = 0,
    fsdp_version: int = 2,
    starts_as_base: bool = False,
    images: bool = False,
) -> None:
    """Refuse what is only known once TRL is set up, mostly what was never run; ``ValueError``.

    ``sharding`` is accelerate's name for how the model is distributed; ``starts_as_base`` says that the model
    without its adapter is the first one.
    """
    name, kind, deepspeed = credit.name, args.teacher_model_kind, sharding == "DEEPSPEED"
    rows = args.per_device_train_batch_size * cast(int, args.steps_per_generation)
    partial = sharding == "FSDP" or (deepspeed and zero_stage == 3)
    never = f"which was never run under {sharding}"
    refusals = (
        *_option_refusals(credit, args),
        *(_image_refusals(credit, args, sharding) if images else ()),
        (
            any(signal.whole_groups for signal in signals_of(credit.needs)) and rows % num_generations > 0,
            f"per_device_train_batch_size: {rows} completions per process and generation are no multiple of "
            f"num_generations ({num_generations}), but {name!r} compares hidden states of a whole group",
        ),
        (fsdp_version == 1, "fsdp_version: 1 hides the head's weights outside of forward; set it to 2"),
        (
            distillation_of(credit) is not None and (partial or args.use_liger_kernel),
            f"credit: {name!r} distils, which needs the whole head at each loss and was never run with FSDP, "
            "DeepSpeed ZeRO-3 or Liger's kernels; use one process, DDP or ZeRO-2, and no use_liger_kernel",
        ),
        (
            deepspeed and args.teacher_model is None and args.teacher_url is None and kind in ("ema", "sync"),
            f"teacher_model_kind: {kind!r} follows the weights by a copy, {never}; use 'base' (loaded once more "
            "and divided like the model), or FSDP 2, which takes both",
        ),
        (
            deepspeed and not starts_as_base and "reference_logprob" in names_of(credit.needs),
            f"credit: {name!r} needs reference_logprob, for which a copy of the first weights is kept, {never}; "
            "train a new LoRA whose init_lora_weights is true, or take one process or DDP",
        ),
        (
            args.sync_ref_model and sharding in SHARDED and args.save_strategy != "no",
            f"sync_ref_model: a checkpoint holds a whole copy of the synced reference, {never}; set it to False, "
            "or save_strategy to 'no'",
        ),
    )
    for refused, message in refusals:
        if refused:
            raise ValueError(message)


def _option_refusals(credit: CreditAssigner, args: GEARConfig) -> list[tuple[bool, str]]:
    """Options that would lose or publish what the teacher is shown, or cannot be run, and the messages."""
    folder, reads_context = RunFolder(Path(str(args.output_dir)), args.record_file), needs_context(credit)
    return [
        (
            reads_context and bool(args.remove_unused_columns),
            "remove_unused_columns: True drops the columns that the teacher is shown; set it to False",
        ),
        (
            args.push_to_hub and reads_context and folder.records is not None and not folder.records_outside,
            f"record_file: {args.record_file!r} holds what the teacher saw, and push_to_hub would publish it; "
            "name a file outside of output_dir, or set it to None",
        ),
        (
            args.push_to_hub
            and distillation_of(credit) is not None
            and args.hub_strategy in ("checkpoint", "all_checkpoints"),
            f"hub_strategy: {HubStrategy(args.hub_strategy).value!r} would publish the teacher's prompts, which "
            f"{credit.name!r} keeps in a checkpoint; set it to 'end'",
        ),
        (
            distillation_of(credit) is not None and args.torch_compile,
            f"torch_compile: True hides the states that {credit.name!r} distils from; set it to False",
        ),
    ]


def _image_refusals(credit: CreditAssigner, args: GEARConfig, sharding: str) -> list[tuple[bool, str]]:
    """What a model that sees images cannot train with, and the messages."""
    blind = [
        signal.name
        for signal in signals_of(credit.needs)
        if isinstance(signal, PassSignal) and not isinstance(signal, ReferenceLogprob)
    ]
    refusals = [
        (
            bool(blind),
            f"model: images are shown in the student's pass and the teacher's alone, and {credit.name!r} needs "
            f"{', '.join(blind)}, a pass without them; take a method such as 'gear', or a language model",
        ),
        (
            needs_passes(credit) and sharding in SHARDED,
            f"model: images with {credit.name!r}, which was never run under {sharding}; take one process or DDP, "
            "or credit 'uniform'",
        ),
    ]
    for setting in ("teacher_model", "teacher_url"):
        value = getattr(args, setting)
        message = (
            f"{setting}: {value!r} reads ids alone, and the model sees images; leave it out, and the teacher is "
            "the model itself (teacher_model_kind)"
        )
        refusals.append((needs_context(credit) and value is not None, message))
    return refusals


def _report_contexts(
    dataset: Any, args: GEARConfig, sources: Sequence[str], environment: Any, method: str
) -> None:
    """Log where the privileged contexts will come from; ``ValueError`` if there can be none at all."""
    names: list[str] | None = getattr(dataset, "column_names", None)
    if names is None or is_transformed(dataset):
        return  # columns are not known: each batch counts its own fallbacks
    columns, column = ", ".join(names), args.privileged_column
    if args.teacher_contrast not in (NO_CONTRAST, *CONTRASTS, *names):
        raise ValueError(
            f"teacher_contrast: {args.teacher_contrast!r} is neither {' nor '.join(map(repr, CONTRASTS))} nor a "
            f"column; the columns are {columns}, and {NO_CONTRAST!r} means none"
        )
    factories = list(environment.values()) if isinstance(environment, dict) else [environment]
    # A factory that is no class may make an environment with a context.
    offers = any(
        factory is not None and (not isinstance(factory, type) or has_privileged_context(factory))
        for factory in factories
    )
    others = [name for name in sources if name != "row" and (name != "environment" or offers)]
    if "row" not in sources and not others:
        raise ValueError(
            f"privileged_sources: {', '.join(sources)} gives method {method!r} no privileged context, since no "
            "environment has privileged_context(); add a source, or use credit 'uniform'"
        )
    if "row" not in sources and column is not None:
        message = (
            "privileged_column: %r is not read, since privileged_sources is %s; add row, or leave it out"
        )
        logger.warning(message, column, ", ".join(sources))
    wanted = (column,) if column is not None else (*PRIVILEGED_COLUMNS, "reward_model")
    present = [name for name in wanted if name in names and "row" in sources]
    if not present and not others:
        choice = f"{column!r}" if column is not None else f"any of {', '.join(PRIVILEGED_COLUMNS)}"
        raise ValueError(
            f"train_dataset: method {method!r} compares the student with a teacher that sees the ground truth, "
            f"but the columns are {columns}, without {choice}; add one, name it with privileged_column, take "
            "another of privileged_sources, or use credit 'uniform'"
        )
    counts = Counter[str]()
    if present and hasattr(dataset, "__len__"):
        rows = dataset.select_columns(present).select(range(min(len(dataset), COUNTED_ROWS)))
        pairs = (privileged_context(row, column) for row in rows)
        counts.update("none" if pair is None else pair[0] for pair in pairs)
    without = counts.pop("none", 0)
    if without and not others and not counts:
        raise ValueError(
            f"train_dataset: all {without} rows of {', '.join(present)} are empty, so the teacher would see "
            "nothing; fill the column or use credit 'uniform'"
        )
    shown = [*others, *(f"{name} for {count} rows" for name, count in sorted(counts.items()))]
    logger.info("privileged context: %s", ", ".join(shown))
    if without and not others:
        logger.warning("privileged context: none for %d rows; they keep their GRPO advantage", without)
