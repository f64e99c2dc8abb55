"""What a run of verl with token credit refuses before it starts, each with the setting that would do."""

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, cast

from gear_rl.credit.contexts import needs_context
from gear_rl.credit.signals import needs_passes
from gear_rl.engines.folder import RunFolder
from gear_rl.errors import InputError
from gear_rl.files import check_output
from gear_rl.runs.verl.settings import SECTION, VerlSettings, read_settings
from gear_rl.signals.privileged import NO_CONTRAST, check_sources
from gear_rl.signals.score import needs_teacher
from gear_rl.traits import distillation_of, is_even

TRAINERS = {"gear_sync": "sync", "gear_colocate_async": "colocate_async"}
"""Our trainers, and the one of verl that each is."""
TESTED = ("0.9.1",)
"""Versions of verl that this was run with."""
TOKEN_ESTIMATORS = ("gae", "reinforce_plus_plus", "optimal_token_baseline", "tir_optimal_token_baseline")
"""Estimators that give the tokens of a completion different advantages already."""


def check(config: Any) -> VerlSettings:
    """The checked settings of verl's whole configuration (a DictConfig); ``InputError`` for what cannot run."""
    rollout = config.actor_rollout_ref.rollout
    settings = read_settings(section_of(config), rollout.get("log_prob_micro_batch_size_per_gpu"))
    _check_trainer(config)
    check_method(settings)
    _check_contrast(config, settings)
    if needs_passes(settings.method):
        _check_workers(config, settings)
    _check_loss(config, settings)
    _check_records(config, settings)
    return settings


def assigns_credit(config: Any) -> bool:
    """Whether a configuration (a DictConfig) means token credit: by a section ``gear``, or by our trainer."""
    return _select(config, SECTION) is not None or _select(config, "trainer.v1.trainer_mode") in TRAINERS


def section_of(config: Any) -> dict[str, Any]:
    """The section ``gear`` of verl's configuration as plain values; empty where there is none."""
    from omegaconf import OmegaConf

    section = config.get(SECTION)
    return {} if section is None else cast(dict[str, Any], OmegaConf.to_container(section, resolve=True))


def environment_problem() -> str | None:
    """What makes every one of verl's workers die in this environment; None if nothing does."""
    if installed("trl") is not None:
        return (
            "trl is installed in this environment, and verl 0.9.1 imports a class that TRL 1.16 no longer has, "
            "so its workers die; make an environment of its own: pip install 'gear-rl[verl]'"
        )
    return None


def version_note() -> str | None:
    """One line where this verl was never run with us; None for one that was."""
    found = installed("verl")
    if found is None or found in TESTED:
        return None
    return f"verl {found} was never run with gear-rl, only {', '.join(TESTED)} was"


def installed(package: str) -> str | None:
    """The version of a package in this environment; None where it is not installed.

    >>> installed("no-such-package")
    """
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _check_trainer(config: Any) -> None:
    mode = config.trainer.v1.trainer_mode
    if not config.trainer.get("use_v1", True):
        raise InputError(
            "trainer.use_v1: False is verl's old trainer, which has no credit step; set it to True"
        )
    if mode not in TRAINERS:
        known = " or ".join(TRAINERS)
        raise InputError(
            f"trainer.v1.trainer_mode: {mode!r} does not assign token credit, though there is a section "
            f"{SECTION}; set it to {known}"
        )


def check_method(settings: VerlSettings, section: str = "gear.", teacher: str = "gear.teacher") -> None:
    """Refuse a method, a teacher or a source that cannot run in verl.

    ``section`` stands before the keys as their reader wrote them, and ``teacher`` is that of the teacher.
    """
    method, config = settings.method, settings.config
    if distillation_of(method) is not None:
        raise InputError(
            f"{section}credit: {method.name!r} adds a distillation term to the loss, and verl's loss has no "
            "place for one; take a method that reweights, such as gear or rlsd"
        )
    if "reference_logprob" in method.needs:
        raise InputError(
            f"{section}credit: {method.name!r} needs reference_logprob, which was never run in verl"
        )
    sources = [*cast(list[str], config.privileged_sources)]
    try:
        check_sources(sources, settings.privileged is not None)
    except ValueError as error:
        raise InputError(f"{section}{error}") from None
    kind = config.teacher_model_kind
    if needs_context(method) and kind not in ("live", "base"):
        raise InputError(
            f"{teacher}: {kind!r} (given, or published with {method.name!r}) keeps a copy of "
            "the weights, which verl has sharded among its workers; set it to live or base"
        )


def reads_reference(config: Any, settings: VerlSettings) -> bool:
    """Whether the teacher is verl's reference model; with LoRA it is the actor without its adapter."""
    base = settings.config.teacher_model_kind == "base" and needs_teacher(settings.method.needs)
    return base and not _lora(config)


def _check_contrast(config: Any, settings: VerlSettings) -> None:
    if reads_reference(config, settings) and settings.config.teacher_contrast != NO_CONTRAST:
        raise InputError(
            "gear.teacher_contrast: a contrast with teacher=base was never run in verl without LoRA; use live"
        )


def _check_workers(config: Any, settings: VerlSettings) -> None:
    """What the passes in verl's workers were never run with, or cannot be."""
    actor, model, name = config.actor_rollout_ref.actor, config.actor_rollout_ref.model, settings.method.name
    if actor.strategy not in ("fsdp", "fsdp2"):
        raise InputError(
            f"actor_rollout_ref.actor.strategy: {actor.strategy!r} divides the vocabulary among its ranks, so "
            f"the exact signals of {name!r} cannot be computed there; set it to fsdp2, or take a method that "
            "needs no pass (uniform, gigpo, mt_grpo)"
        )
    for part in ("actor", "ref") if reads_reference(config, settings) else ("actor",):
        for key in ("ulysses_sequence_parallel_size", "fsdp_config.ulysses_sequence_parallel_size"):
            sequence = int(_select(config, f"actor_rollout_ref.{part}.{key}") or 1)
            if sequence > 1:
                raise InputError(
                    f"actor_rollout_ref.{part}.{key}: {sequence} divides a sequence among ranks, which the "
                    "signals were never run with; set it to 1"
                )
    if model.get("use_fused_kernels", False):
        raise InputError(
            "actor_rollout_ref.model.use_fused_kernels: True replaces the model's forward, which the signals "
            "were never run with; set it to False"
        )


def _check_loss(config: Any, settings: VerlSettings) -> None:
    estimator = str(config.algorithm.adv_estimator)
    if estimator in TOKEN_ESTIMATORS:
        raise InputError(
            f"algorithm.adv_estimator: {estimator!r} gives every token an advantage of its own, and token credit "
            "divides one per completion; use grpo or rloo"
        )
    loss = _select(config.actor_rollout_ref.actor, "policy_loss.loss_mode")
    if loss == "geo_mean" and not is_even(settings.method):
        raise InputError(
            "actor_rollout_ref.actor.policy_loss.loss_mode: 'geo_mean' averages the advantages of a completion, "
            f"so the token credit of {settings.method.name!r} would be lost; use vanilla, gspo or cispo"
        )
    distilled = _select(config, "distillation.enabled")
    if distilled and not _select(config, "distillation.distillation_loss.use_task_rewards"):
        raise InputError(
            "distillation.distillation_loss.use_task_rewards: False leaves the advantages out of the loss, and "
            "the credit with them; set it to True, or distillation.enabled to False"
        )


def _check_records(config: Any, settings: VerlSettings) -> None:
    try:
        folder = RunFolder(Path(config.trainer.default_local_dir), settings.config.record_file)
        if folder.records is None:
            return
        folder.check_records()
        for key in ("train_files", "val_files"):
            files: Any = config.data.get(key) or []
            check_output(
                folder.records, map(Path, [files] if isinstance(files, str) else files), "record_file"
            )
    except ValueError as error:
        raise InputError(f"gear.{error}") from None


def _lora(config: Any) -> bool:
    model = config.actor_rollout_ref.model
    rank = _select(model, "lora.rank") or model.get("lora_rank", 0) or 0
    return int(rank) > 0 or model.get("lora_adapter_path") is not None


def _select(config: Any, path: str) -> Any:
    """The value under a path; None where the way there is none."""
    for name in path.split("."):
        config = config.get(name) if hasattr(config, "get") else None
    return config
