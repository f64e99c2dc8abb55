"""The section ``gear`` of verl's configuration, and what is refused; verl itself is not needed for it."""

import dataclasses
from typing import Any

import pytest

from gear_rl.credit.config import CreditConfig
from gear_rl.engines.verl import checks
from gear_rl.engines.verl.checks import VerlSettings, reads_reference
from gear_rl.errors import InputError
from gear_rl.methods import METHODS
from gear_rl.runs.verl.settings import group_of, read_settings
from gear_rl.traits import distillation_of

REWEIGHTING = [name for name, cls in METHODS.items() if distillation_of(cls()) is None]


ACTOR = "actor_rollout_ref.actor"
VERL = {
    "trainer.default_local_dir": "runs/verl",
    "trainer.v1.trainer_mode": "gear_sync",
    f"{ACTOR}.strategy": "fsdp2",
    "actor_rollout_ref.model.lora_rank": 0,
}


class Config(dict[str, Any]):
    """The access of OmegaConf's DictConfig."""

    __getattr__ = dict.__getitem__


def config_of(section: dict[str, Any], changes: dict[str, Any] | None = None) -> Config:
    """A small configuration of verl that can run, with changes. GEAR's own teacher would need more."""
    config = Config(gear={"teacher": "live"} | section)
    for path, value in (VERL | (changes or {})).items():
        *way, last = path.split(".")
        inner = config
        for name in way:
            inner = inner.setdefault(name, Config())
        inner[last] = value
    return config


def check(config: Config) -> VerlSettings:
    settings = read_settings(config["gear"], batch_size=4)
    checks.check(config, settings)
    return settings


@pytest.mark.parametrize("name", METHODS)
def test_no_name_means_two_settings(name):
    """Method and credit step share one level, so a name that both had would be read once only."""
    own = {f.name for f in dataclasses.fields(METHODS[name])}
    of_step = {f.name for f in dataclasses.fields(CreditConfig)}
    of_agents = {f.name for f in dataclasses.fields(VerlSettings)}
    assert not own & of_step and not (own | of_step) & (of_agents | {"credit", "teacher"})


@pytest.mark.parametrize("name", REWEIGHTING)
def test_a_method_that_reweights_runs_and_its_group_is_its_defaults(name):
    settings = read_settings(group_of(name))
    assert settings.method == METHODS[name]()
    assert settings.config == CreditConfig(credit_batch_size=8).resolved(METHODS[name](), announce=False)
    assert check(config_of({"credit": name})).method.name == name


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"credit": "geer"}, r"gear\.credit: no method 'geer'; did you mean"),
        ({"teacher": "base", "teacher_model_kind": "live"}, r"gear\.teacher: 'base', but"),
        ({"tool_time_limit": "long"}, r"gear\.tool_time_limit: 'long'"),
        ({"privileged": "nowhere:function"}, r"gear\.privileged: cannot import 'nowhere'"),
    ],
)
def test_a_wrong_setting_names_itself(section, message):
    with pytest.raises(InputError, match=message):
        read_settings(section)


@pytest.mark.parametrize(
    ("section", "changes", "message"),
    [
        ({}, {"trainer.v1.trainer_mode": "sync"}, r"trainer_mode: 'sync' does not assign token credit"),
        ({}, {"trainer.use_v1": False}, r"trainer\.use_v1: False"),
        ({"credit": "opsd"}, {}, r"gear\.credit: 'opsd' adds a distillation term"),
        ({"privileged_sources": ["function"]}, {}, r"gear\.privileged_sources: 'function' needs a function"),
        (
            {"credit": "rlsd", "teacher": None},
            {},
            r"gear\.teacher: 'sync' \(given, or published with 'rlsd'\)",
        ),
        ({}, {f"{ACTOR}.strategy": "megatron"}, r"actor\.strategy: 'megatron'"),
        ({}, {f"{ACTOR}.ulysses_sequence_parallel_size": 2}, r"ulysses_.*: 2 divides"),
        (
            {},
            {"distillation.enabled": True, "distillation.distillation_loss.use_task_rewards": False},
            r"distillation_loss\.use_task_rewards: False",
        ),
        ({}, {"actor_rollout_ref.model.use_fused_kernels": True}, r"use_fused_kernels: True"),
        ({}, {"algorithm.adv_estimator": "gae"}, r"adv_estimator: 'gae' gives every token"),
        ({}, {f"{ACTOR}.policy_loss.loss_mode": "geo_mean"}, r"'geo_mean' averages"),
    ],
)
def test_what_cannot_run_is_refused_with_what_would(section, changes, message):
    with pytest.raises(InputError, match=message):
        check(config_of(section, changes))


@pytest.mark.parametrize(
    ("section", "rank", "reads"),
    [
        ({"teacher": None}, 0, True),
        ({"teacher": "base"}, 8, False),
        ({"credit": "gigpo", "teacher": "base"}, 0, False),
    ],
)
def test_the_base_teacher_without_lora_reads_verls_reference(section, rank, reads):
    config = config_of(section, {"actor_rollout_ref.model.lora_rank": rank})
    assert reads_reference(config, check(config)) == reads


def test_an_environment_with_trl_is_refused():
    with pytest.raises(InputError, match=r"gear-rl\[verl\]"):
        checks.check_environment()
