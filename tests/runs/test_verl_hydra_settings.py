"""The section ``gear`` of verl's configuration, and what is refused; verl itself is not needed for it."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from gear_rl.arena.model import load as load_arena
from gear_rl.engines.engine_config import EngineConfig
from gear_rl.engines.verl import checks
from gear_rl.engines.verl.checks import VerlSettings, reads_reference
from gear_rl.errors import InputError
from gear_rl.methods import METHODS
from gear_rl.runs.verl.hydra_settings import group_of, read_settings
from gear_rl.signals.table import needs_teacher
from gear_rl.traits import distillation_of

REWEIGHTING = [name for name, cls in METHODS.items() if distillation_of(cls()) is None]


ACTOR, MODEL = "actor_rollout_ref.actor", "actor_rollout_ref.model.path"
VERL = {
    "trainer.default_local_dir": "runs/verl",
    "trainer.v1.trainer_mode": "gear_sync",
    f"{ACTOR}.strategy": "fsdp2",
    "actor_rollout_ref.ref.strategy": "fsdp2",
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
    of_engine = {f.name for f in dataclasses.fields(EngineConfig)}
    of_run = {"credit", "teacher", "environment", "privileged"}
    assert not own & of_engine and not (own | of_engine) & of_run


@pytest.mark.parametrize("name", REWEIGHTING)
def test_a_method_that_reweights_runs_and_its_group_is_its_defaults(name):
    settings = read_settings(group_of(name))
    assert settings.method == METHODS[name]()
    assert settings.config == EngineConfig(credit_batch_size=8).resolved(METHODS[name](), announce=False)
    teacher = {"teacher": "base"} if name == "cast" else {}  # live it would be the student
    assert check(config_of({"credit": name} | teacher)).method.name == name


@pytest.mark.parametrize(
    "section",
    [
        {"credit": "opsd", "sampled": True},
        {"credit": "sdpo", "sampled": True},
        {"credit": "sdpg", "sampled": True, "anchor": "none"},
        {"credit": "uniform+opsd:sampled=true"},
    ],
)
def test_a_method_that_distils_from_sampled_tokens_runs(section):
    assert needs_teacher(check(config_of(section)).method)


@pytest.fixture
def models(tmp_path: Path) -> tuple[str, str]:
    """Two folders with a tokenizer, of which the second knows a token more."""
    for name, more in (("own", []), ("other", ["never seen"])):
        tokenizer = load_arena()[1]
        tokenizer.add_tokens(more)
        tokenizer.save_pretrained(tmp_path / name)
    return str(tmp_path / "own"), str(tmp_path / "other")


def test_a_teacher_of_another_vocabulary_is_refused_before_a_run(models):
    own, other = models
    for name, message in {
        other: r"gear\.teacher_model: .*other has another vocabulary than the model",
        own + "/none": r"^gear\.teacher_model: '.*none' has no tokenizer that can be loaded",
    }.items():
        with pytest.raises(InputError, match=message):
            check(config_of({"teacher": None, "teacher_model": name}, {MODEL: own}))
    with pytest.raises(InputError, match=r"actor_rollout_ref\.model\.path: '.*none' has no tokenizer"):
        check(config_of({"teacher": None, "teacher_model": own}, {MODEL: own + "/none"}))
    # Its weights are the teacher's, so a copy that the method asks for by default is not made.
    for method in ("gear", "rlsd"):
        config = config_of({"credit": method, "teacher": None, "teacher_model": own}, {MODEL: own})
        assert not reads_reference(config, check(config))
    check(config_of({"credit": "gigpo", "teacher": None, "teacher_model": other}, {MODEL: own}))


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"credit": "geer"}, r"gear\.credit: no method 'geer'; did you mean"),
        ({"teacher": "base", "teacher_model_kind": "live"}, r"gear\.teacher: 'base', but"),
        ({"tool_time_limit": "long"}, r"gear\.tool_time_limit: 'long'"),
        ({"privileged": "nowhere:function"}, r"gear\.privileged: cannot import 'nowhere'"),
        ({"environment": "nowhere:Desk"}, r"gear\.environment: cannot import 'nowhere'"),
        (
            {"teacher": "live", "teacher_model": "x"},
            r"gear\.teacher: 'live' names .* gear\.teacher_model; leave",
        ),
    ],
)
def test_a_wrong_setting_names_itself(section, message):
    with pytest.raises(InputError, match=message):
        read_settings(section)
