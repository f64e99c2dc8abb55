"""Refuses settings of verl under which token credit would be missing or wrong; the error names one that works."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from gear_rl.credit.contexts import PrivilegedFunction
from gear_rl.credit.credit_config import NO_CONTRAST, check_sources, check_teacher
from gear_rl.engines.engine_config import EngineConfig
from gear_rl.engines.folder import RunFolder
from gear_rl.engines.models import check_reward_model, check_vocabulary, reward_models, tokenizer_of
from gear_rl.errors import InputError, input_errors
from gear_rl.signals.signal import names_of
from gear_rl.signals.table import needs_context, needs_passes, needs_teacher
from gear_rl.traits import distillation_of, is_even
from gear_rl.types import CreditAssigner

TRAINERS = ("gear_sync", "gear_colocate_async")
TESTED = "0.9.1"
"""The version of verl that gear-rl is tested with."""
GROUP_ESTIMATORS = ("grpo", "grpo_vectorized", "rloo", "rloo_vectorized", "opo", "gpg")
"""Estimators that compare a rollout's reward with those of its group alone."""
TOKEN_ESTIMATORS = ("gae", "reinforce_plus_plus", "optimal_token_baseline", "tir_optimal_token_baseline")
"""Estimators that give the tokens of a completion different advantages already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerlSettings:
    """The settings under the key ``gear``; ``config`` is resolved, with a ``credit_batch_size``."""

    method: CreditAssigner
    config: EngineConfig
    privileged: PrivilegedFunction | None = None
    environment: str | None = None
    """The environment of the agent loop: ``package.module:Class``, or ``arena/TASK/TIER``."""


def check(config: Any, settings: VerlSettings) -> None:
    """Raise ``InputError`` for what cannot run under verl's whole configuration (a DictConfig)."""
    check_method(settings)
    for path, why in _refusals(config, settings):
        raise InputError(f"{path}: {select(config, path)!r} {why}")
    method, model = settings.method, config.actor_rollout_ref.model
    with input_errors("gear."):
        RunFolder(Path(config.trainer.default_local_dir), settings.config.record_file).check_records()
    read = reward_models(method)
    teacher = settings.config.teacher_model if needs_teacher(method) else None
    if not read and teacher is None:
        return
    with input_errors():
        own = tokenizer_of(select(model, "tokenizer_path") or model.path, "actor_rollout_ref.model.path")
    with input_errors("gear."):
        for name in read:
            check_reward_model(name, own)
        if teacher is not None:
            check_vocabulary(teacher, tokenizer_of(teacher, "teacher_model"), own)


def _refusals(config: Any, settings: VerlSettings) -> Iterator[tuple[str, str]]:
    """The keys of verl whose values are refused for this method, each with the reason."""
    name, actor, model = settings.method.name, "actor_rollout_ref.actor", "actor_rollout_ref.model"
    value = partial(select, config)
    if value(key := "trainer.use_v1") is False:
        yield key, "is verl's old trainer, which has no credit step; set it to True"
    if value(key := "trainer.v1.trainer_mode") not in TRAINERS:
        fix = " or ".join(TRAINERS)
        yield key, f"does not assign token credit, though there is a section gear; set it to {fix}"
    if value("async_training") is not None or value("rollout") is not None:
        why = "counts in verl.trainer.main_ppo alone, and this command would assign no token credit"
        yield "trainer.v1.trainer_mode", f"{why}; run that one"
    if value(key := "algorithm.adv_estimator") in TOKEN_ESTIMATORS:
        why = "gives every token an advantage of its own, and token credit divides one per completion"
        yield key, f"{why}; use grpo or rloo"
    if value(key := f"{actor}.policy_loss.loss_mode") == "geo_mean" and not is_even(settings.method):
        why = f"averages the advantages of a completion, so the token credit of {name!r} would be lost"
        yield key, f"{why}; use vanilla, gspo or cispo"
    key = "distillation.distillation_loss.use_task_rewards"
    if value("distillation.enabled") and not value(key):
        why = "leaves the advantages out of the loss, and the credit with them"
        yield key, f"{why}; set it to True, or distillation.enabled to False"
    if not needs_passes(settings.method):
        return
    reference = reads_reference(config, settings)
    parts = (actor, "actor_rollout_ref.ref") if reference else (actor,)
    for part in parts:
        if value(key := f"{part}.strategy") != "fsdp2":
            why = f"keeps the head's weights in another form than the exact signals of {name!r} are computed from"
            fix = "set it to fsdp2, or take a method that needs no pass (uniform, gigpo, mt_grpo)"
            yield key, f"{why}; {fix}"
    if value(key := f"{actor}.fsdp_config.offload_policy"):
        yield key, "keeps the head's weights off the device; set it to False"
    if value(key := f"{model}.use_fused_kernels"):
        yield key, "replaces the model's forward, which the signals were never run with; set it to False"
    size = "ulysses_sequence_parallel_size"
    for part in parts:
        for key in (f"{part}.{size}", f"{part}.fsdp_config.{size}"):
            if int(value(key) or 1) > 1:
                yield (
                    key,
                    "divides a sequence among ranks, which the signals were never run with; set it to 1",
                )
    if _taught_by_base(settings) and value(key := f"{model}.lora_adapter_path") is not None:
        why = (
            "is trained on, so the model without it, which would be the teacher 'base', is not the first one"
        )
        yield (
            key,
            f"{why}; merge it into the model, or set gear.teacher=live, which cost gear its gain on codebook",
        )
    if reference and settings.config.teacher_contrast != NO_CONTRAST:
        yield "gear.teacher_contrast", "with teacher=base was never run in verl without LoRA; leave it out"


def check_method(settings: VerlSettings) -> None:
    """Raise ``InputError`` for a method, a teacher or a source that cannot run in verl."""
    method, config = settings.method, settings.config
    term = distillation_of(method)
    if term is not None and term.anchor != "none":
        raise InputError(
            f"gear.anchor: {term.anchor!r} is a term of the loss, which verl has itself; set it to none, and "
            "actor_rollout_ref.actor.use_kl_loss=True with the kl_loss_type mse (urkl) or low_var_kl (ufkl) and "
            "the anchor's weight as kl_loss_coef"
        )
    if term is not None:
        raise InputError(
            f"gear.credit: {method.name!r} adds a divergence of whole distributions to the loss, and verl's loss "
            "sees the log-probs of sampled tokens alone; set gear.sampled=true (opsd, sdpo, sdpg), which makes "
            "it an advantage, or take a method that reweights, such as gear"
        )
    if "reference_logprob" in names_of(method.needs):
        raise InputError(f"gear.credit: {method.name!r} needs reference_logprob, which was never run in verl")
    students = needs_context(method) and settings.config.teacher_model is None
    with input_errors("gear."):
        check_sources(config.privileged_sources or (), settings.privileged is not None)
        if students:
            check_teacher(config)
    kind = config.teacher_model_kind
    if students and kind not in ("live", "base"):
        raise InputError(
            f"gear.teacher: {kind!r} (given, or the default of {method.name!r}) keeps a copy of the weights, "
            "which verl has sharded among its workers; set it to base, or name a gear.teacher_model"
        )


def compares_groups(config: Any) -> bool:
    """Whether equal rewards of a group mean no advantage under verl's configuration."""
    if select(config, "algorithm.use_kl_in_reward"):
        return False
    return select(config, "algorithm.adv_estimator") in GROUP_ESTIMATORS


def reads_reference(config: Any, settings: VerlSettings) -> bool:
    """Whether the teacher is verl's reference model; with LoRA it is the actor without its adapter."""
    model = config.actor_rollout_ref.model
    rank = select(model, "lora.rank") or model.get("lora_rank", 0) or 0
    has_adapter = int(rank) > 0 or model.get("lora_adapter_path") is not None
    return _taught_by_base(settings) and not has_adapter


def _taught_by_base(settings: VerlSettings) -> bool:
    base = settings.config.teacher_model_kind == "base" and settings.config.teacher_model is None
    return base and needs_teacher(settings.method)


def select(config: Any, path: str) -> Any:
    """The value under a dotted path; None where there is none."""
    for name in path.split("."):
        config = config.get(name) if hasattr(config, "get") else None
    return config


def check_environment() -> None:
    """Raise ``InputError`` where every worker of verl would die in this environment."""
    if installed_version("trl") is not None:
        raise InputError(
            "trl is installed in this environment, and verl 0.9.1 imports a class that TRL 1.16 no longer has, "
            "so its workers die; make an environment of its own: pip install 'gear-rl[verl]'"
        )


def version_note() -> str | None:
    """One line for a version of verl that is not the tested one; None otherwise."""
    found = installed_version("verl")
    return None if found in (None, TESTED) else f"verl {found} was never run with gear-rl, only {TESTED} was"


def installed_version(package: str) -> str | None:
    """The version of a package in this environment; None where it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
