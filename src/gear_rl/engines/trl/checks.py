"""What the TRL engine refuses before anything is loaded, and how it reaches sharded weights."""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import trl
from torch import nn

from gear_rl.credit.contexts import PrivilegedFunction, needs_context, sources_of
from gear_rl.credit.signals import needs_passes
from gear_rl.engines.trl.config import GEARConfig
from gear_rl.engines.trl.trainer_type import Trainer
from gear_rl.environments import has_privileged_context
from gear_rl.signals.privileged import (
    CONTRASTS,
    NO_CONTRAST,
    PRIVILEGED_COLUMNS,
    check_sources,
    source_counts,
)
from gear_rl.traits import distillation_of, is_even
from gear_rl.types import CreditAssigner

logger = logging.getLogger(__name__)

SHARDED = ("FSDP", "DEEPSPEED")
"""How accelerate calls the ways in which a process holds a part of the weights only."""
CONSTANT_RATIO_LOSSES = ("cispo", "vespo")
"""Losses whose ratio carries no gradient. Each token has its own log-prob as a factor, so token credit stays also
where a completion has one ratio; ``docs/engines.md`` has the measurements."""
COUNTED_ROWS = 100_000
"""Rows of the dataset whose privileged context is looked for before the training; every batch counts its own."""


def checked_arguments(
    args: Any,
    credit: CreditAssigner,
    privileged: PrivilegedFunction | None,
    dataset: Any,
    options: Mapping[str, Any],
) -> GEARConfig:
    """The settings with the method's own where none were given; ``ValueError`` for what cannot train.

    Before anything is loaded: ``options`` are the other arguments of ``GRPOTrainer``.

    >>> from gear_rl.methods.gear import Gear
    >>> checked_arguments(GEARConfig("out", use_cpu=True), Gear(), None, None, {}).teacher_model_kind
    'base'
    >>> checked_arguments(None, Gear, None, None, {})
    Traceback (most recent call last):
    ValueError: credit: <class 'gear_rl.methods.gear.Gear'> is not a method; give an object such as Gear() or ...
    """
    if isinstance(credit, type) or not isinstance(credit, CreditAssigner):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ValueError(f"credit: {credit!r} is not a method; give an object such as Gear() or Uniform()")
    if args is None:
        args = GEARConfig("gear-output")
    if not isinstance(args, GEARConfig):
        raise ValueError(
            f"args: {type(args).__name__} has no settings of the credit step; give a GEARConfig, which takes "
            "the same arguments and more"
        )
    given, args = args, args.resolved(credit, announce=False)
    reads_context, rollout_func = needs_context(credit), options.get("rollout_func")
    if args.teacher_prompt == "render" and rollout_func is not None and reads_context:
        raise ValueError(
            "teacher_prompt: 'render' cannot repeat the prompt that a rollout_func builds itself; set it to "
            "'splice'"
        )
    if args.teacher_model is not None:
        check_teacher_model(credit, given.teacher_model_kind)
    check_importance_level(credit, args.loss_type, args.importance_sampling_level)
    check_signs(credit, args.loss_type, args.off_policy_mask_threshold)
    sources = sources_of(args, privileged)
    check_sources(sources, privileged is not None)
    if reads_context and dataset is not None:
        column, contrast = args.privileged_column, str(args.teacher_contrast)
        _report_contexts(dataset, column, sources, options.get("environment_factory"), contrast, credit.name)
    given.resolved(credit, announce=given.process_index == 0)  # said once nothing was refused
    return args


def check_trainer(trainer: Trainer) -> None:
    """Refuse what is only known once TRL has set itself up: ``ValueError`` that names the setting."""
    credit, args, state = trainer.credit, trainer.args, trainer.accelerator.state
    if getattr(trainer, "_is_vlm", False) and needs_passes(credit):
        raise ValueError(
            f"model: images cannot be scored yet, and {credit.name!r} needs passes of the model; train a "
            "language model, or use credit 'uniform'"
        )
    check_groups(credit, args, trainer.num_generations)
    if args.teacher_model is not None and trainer.sharding in SHARDED:
        raise ValueError(
            f"teacher_model: {args.teacher_model!r} stands whole on every process, which was never run under "
            f"{trainer.sharding}; use one process or DDP, or leave it out"
        )
    if distillation_of(credit) is not None:
        plugin: Any = getattr(state, "deepspeed_plugin", None)
        check_distillation(
            credit.name,
            sharding=trainer.sharding,
            zero_stage=0 if plugin is None else int(plugin.zero_stage),
            liger=bool(args.use_liger_kernel),
        )
    if getattr(getattr(state, "fsdp_plugin", None), "fsdp_version", 2) == 1:
        raise ValueError("fsdp_version: 1 hides the head's weights outside of forward; set it to 2")
    peft = hasattr(trainer.model, "peft_config")
    check_sharding(str(args.teacher_model_kind), trainer.sharding, peft)
    check_reference(credit, trainer.sharding, peft)
    if args.sync_ref_model and trainer.sharding in SHARDED and args.save_strategy != "no":
        raise ValueError(
            "sync_ref_model: a checkpoint holds a whole copy of the synced reference, which was never run under "
            f"{trainer.sharding}; set it to False, or save_strategy to 'no'"
        )


def check_sharding(kind: str, sharding: str, peft: bool) -> None:
    """Refuse a teacher that would keep a copy of weights that are partitioned out of its sight.

    >>> check_sharding("ema", "FSDP", peft=False)
    >>> check_sharding("base", "DEEPSPEED", peft=True)
    >>> check_sharding("ema", "DEEPSPEED", peft=False)
    Traceback (most recent call last):
    ValueError: teacher_model_kind: 'ema' keeps a copy of the weights, which was never run under DEEPSPEED; use
    'live', or 'base' with a PEFT adapter
    """
    copies = kind not in ("live", "base") or (kind == "base" and not peft)
    if copies and sharding == "DEEPSPEED":
        raise ValueError(
            f"teacher_model_kind: {kind!r} keeps a copy of the weights, which was never run under {sharding}; "
            "use 'live', or 'base' with a PEFT adapter"
        )


def check_teacher_model(credit: CreditAssigner, kind: str | None) -> None:
    """Refuse another model as teacher where its weights would not be what the method reads; ``ValueError``.

    >>> from gear_rl.methods.gear import Gear
    >>> check_teacher_model(Gear(), "live")
    Traceback (most recent call last):
    ValueError: teacher_model_kind: 'live' says whose weights the teacher has, and so does teacher_model; ...
    """
    if kind is not None:
        raise ValueError(
            f"teacher_model_kind: {kind!r} says whose weights the teacher has, and so does teacher_model; leave "
            "one of them out"
        )
    if distillation_of(credit) is not None:
        raise ValueError(
            f"teacher_model: credit {credit.name!r} distils its teacher in the loss, which was never run with "
            "another model; leave it out, or take a method that reweights, such as 'gear'"
        )


def check_reference(credit: CreditAssigner, sharding: str, peft: bool) -> None:
    """Refuse a method that needs the first weights where no copy of them could be kept; ``ValueError``.

    >>> from gear_rl.methods.sdpg import Sdpg
    >>> check_reference(Sdpg(), "DEEPSPEED", peft=False)
    Traceback (most recent call last):
    ValueError: credit: 'sdpg' needs reference_logprob, for which a copy of the first weights is kept, ...
    """
    if "reference_logprob" in credit.needs and sharding == "DEEPSPEED" and not peft:
        raise ValueError(
            f"credit: {credit.name!r} needs reference_logprob, for which a copy of the first weights is kept, "
            f"which was never run under {sharding}; train a PEFT adapter, or take one process or DDP"
        )


def check_importance_level(credit: CreditAssigner, loss_type: str, level: str) -> None:
    """Refuse a loss whose gradient sees only the sum of a completion's credit.

    With one importance ratio for the completion (``level`` "sequence", as in GSPO, arXiv:2507.18071) most losses
    of TRL multiply that ratio by the sum of the advantages: every token gets the same gradient, whatever its
    weight. Only an even method (``traits.is_even``), such as ``uniform`` or ``crpo``, loses nothing. Raises
    ``ValueError``.

    >>> from gear_rl.methods.gear import Gear
    >>> check_importance_level(Gear(), "grpo", "token")
    >>> check_importance_level(Gear(), "cispo", "sequence")
    >>> check_importance_level(Gear(), "grpo", "sequence")
    Traceback (most recent call last):
    ValueError: importance_sampling_level: 'sequence' with loss_type 'grpo' gives all tokens of a completion the
    same gradient, so the token credit of 'gear' would be lost; set it to 'token', or use credit 'uniform'
    """
    if level == "token" or loss_type in CONSTANT_RATIO_LOSSES or is_even(credit):
        return
    raise ValueError(
        f"importance_sampling_level: {level!r} with loss_type {loss_type!r} gives all tokens of a completion the "
        f"same gradient, so the token credit of {credit.name!r} would be lost; set it to 'token', or use credit "
        "'uniform'"
    )


def check_signs(credit: CreditAssigner, loss_type: str, off_policy_mask_threshold: float | None) -> None:
    """Refuse a rule of TRL's for whole completions that follows a sign, where tokens differ in theirs.

    The off-policy mask (DeepSeek-V3.2) drops a completion that failed and has become unlikely; VESPO weighs a
    completion by its ratio, in another way if it failed. TRL decides by the sign of each token's advantage, which
    for a reweighting method is the completion's. For an additive method the mask would drop the blame of a failed
    completion and keep its praise, and VESPO would change how the two compare. PPO's clip and SAPO's temperature
    are rules for a token and its own ratio, so they stay what they were. Raises ``ValueError``.

    >>> from gear_rl.methods.gear import Gear
    >>> from gear_rl.methods.gigpo import Gigpo
    >>> check_signs(Gear(), "vespo", off_policy_mask_threshold=0.1)
    >>> check_signs(Gigpo(), "vespo", off_policy_mask_threshold=None)
    Traceback (most recent call last):
    ValueError: loss_type: 'vespo' weighs a completion by the sign of its advantage, but with credit 'gigpo' its
    tokens may differ in sign; take another loss_type, or use a method that only reweights, such as 'gear'
    """
    if loss_type == "vespo":
        rule, fix = "loss_type: 'vespo' weighs", "take another loss_type"
    elif off_policy_mask_threshold is not None:
        rule, fix = f"off_policy_mask_threshold: {off_policy_mask_threshold} drops", "set it to None"
    else:
        return
    # Not `is_additive`: what a distilling method adds does not pass through the advantage.
    if getattr(credit, "additive", False):
        raise ValueError(
            f"{rule} a completion by the sign of its advantage, but with credit {credit.name!r} its tokens may "
            f"differ in sign; {fix}, or use a method that only reweights, such as 'gear'"
        )


def check_distillation(method: str, *, sharding: str, zero_stage: int = 0, liger: bool = False) -> None:
    """Refuse what the term was never run with: the head's weights are needed outside of the model's forward.

    >>> check_distillation("sdpo", sharding="MULTI_GPU")
    >>> check_distillation("sdpo", sharding="DEEPSPEED", zero_stage=3)
    Traceback (most recent call last):
    ValueError: credit: 'sdpo' distils, which needs the whole head at each loss and was never run with DeepSpeed
    ZeRO-3; use one process, DDP or ZeRO-2
    """
    problems = []
    if sharding == "FSDP":
        problems.append(("FSDP", "use one process, DDP or ZeRO-2"))
    if sharding == "DEEPSPEED" and zero_stage == 3:
        problems.append(("DeepSpeed ZeRO-3", "use one process, DDP or ZeRO-2"))
    if liger:
        problems.append(("Liger's kernels", "set use_liger_kernel to False"))
    if problems:
        names, fixes = zip(*problems, strict=True)
        raise ValueError(
            f"credit: {method!r} distils, which needs the whole head at each loss and was never run with "
            f"{' and '.join(names)}; {' and '.join(dict.fromkeys(fixes))}"
        )


def check_groups(credit: CreditAssigner, args: Any, num_generations: int) -> None:
    """Refuse a batch that tears groups apart for a method that compares hidden states of siblings."""
    rows = args.per_device_train_batch_size * args.steps_per_generation
    if "transport_distance" in credit.needs and rows % num_generations:
        raise ValueError(
            f"per_device_train_batch_size: {rows} completions per process and generation are no multiple of "
            f"num_generations ({num_generations}), but {credit.name!r} compares hidden states of a whole group"
        )


def _report_contexts(
    dataset: Any,
    column: str | None,
    sources: Sequence[str],
    environment: Any,
    contrast: str,
    method: str,
) -> None:
    """Log where the privileged contexts will come from; ``ValueError`` if there can be none at all."""
    names: list[str] | None = getattr(dataset, "column_names", None)
    if names is None:
        return  # a stream that does not say its columns: each batch counts its own fallbacks
    if contrast not in (NO_CONTRAST, *CONTRASTS, *names):
        raise ValueError(
            f"teacher_contrast: {contrast!r} is neither {' nor '.join(map(repr, CONTRASTS))} nor a column; the "
            f"columns are {', '.join(names)}, and {NO_CONTRAST!r} means none"
        )
    factories = list(environment.values()) if isinstance(environment, dict) else [environment]
    # What a factory that is no class makes is not known before it is called; it may well have a context.
    offers = any(
        factory is not None and (not isinstance(factory, type) or has_privileged_context(factory))
        for factory in factories
    )
    others = [name for name in sources if name != "row" and (name != "environment" or offers)]
    if others:
        logger.info("privileged context: %s", ", ".join(others))
    if "row" not in sources:
        if column is not None and others:
            logger.warning(
                "privileged_column: %r is not read, since privileged_sources is %s; add row there, or leave the "
                "column out",
                column,
                ", ".join(sources),
            )
        if not others:
            raise ValueError(
                f"privileged_sources: {', '.join(sources)} gives method {method!r} no privileged context, since "
                "no environment has privileged_context(); add a source, or use credit 'uniform'"
            )
        return
    wanted = (column,) if column is not None else (*PRIVILEGED_COLUMNS, "reward_model")
    present = [name for name in wanted if name in names]
    choice = f"{column!r}" if column is not None else f"any of {', '.join(PRIVILEGED_COLUMNS)}"
    if not present and not others:
        raise ValueError(
            f"train_dataset: method {method!r} compares the student with a teacher that sees the ground truth, "
            f"but the columns are {', '.join(names)}, without {choice}; add one, name it with "
            "privileged_column, take another of privileged_sources, or use credit 'uniform'"
        )
    if not present or not hasattr(dataset, "__len__"):
        return
    looked_at = min(len(dataset), COUNTED_ROWS)
    counts = source_counts(list(dataset.select_columns(present).select(range(looked_at))), column)
    without = counts.pop("none", 0)
    if not counts and not others:
        raise ValueError(
            f"train_dataset: all {without} rows of {', '.join(present)} are empty, so the teacher would see "
            "nothing; fill the column or use credit 'uniform'"
        )
    shown = ", ".join(f"{name} for {count} rows" for name, count in counts.items())
    if shown:
        logger.info("privileged context: %s%s", shown, "" if looked_at == len(dataset) else " (of the first)")
    if without and not others:
        logger.warning("privileged context: none for %d rows; they keep their GRPO advantage", without)


def gathered_head(model: nn.Module) -> AbstractContextManager[Any]:
    """Under DeepSpeed ZeRO-3 the head's weights are only whole inside TRL's gathering context."""
    gather: Callable[..., AbstractContextManager[Any]] | None = getattr(
        trl.trainer.utils, "maybe_gather_lm_head_ctx", None
    )
    layer: Any = cast(Any, model).get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    if gather is None or layer is None:
        return nullcontext()
    return gather(*(p for p in (layer.weight, getattr(layer, "bias", None)) if p is not None))
