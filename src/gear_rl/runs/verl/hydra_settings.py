"""The settings under Hydra's key ``gear``: those of a method, of the credit step and of an agent."""

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, cast

from gear_rl.engines.engine_config import EngineConfig
from gear_rl.engines.verl.checks import VerlSettings
from gear_rl.engines.verl.rollouts import AGENT_NAME
from gear_rl.errors import InputError, did_you_mean, input_errors
from gear_rl.method_builder import build_method, credit_settings, find_method
from gear_rl.methods import METHODS
from gear_rl.settings import checked_value
from gear_rl.user_objects import import_object

SECTION = "gear"
"""The key of verl's configuration."""
_BATCH_SIZE = 8
"""Completions in a forward pass, where verl has no setting of its own."""
_ENGINE = {field.name for field in fields(EngineConfig)}
_OBJECTS = ("environment", "privileged")


def read_config(config: Any) -> VerlSettings:
    """The settings of verl's whole configuration (a DictConfig)."""
    from omegaconf import OmegaConf

    section = OmegaConf.to_container(config.get(SECTION) or OmegaConf.create({}), resolve=True)
    batch_size = config.actor_rollout_ref.rollout.get("log_prob_micro_batch_size_per_gpu")
    return read_settings(section, batch_size)


def read_settings(section: Mapping[str, Any], batch_size: int | None = None) -> VerlSettings:
    """The settings of a section; ``InputError`` names the key, the value and the fix.

    ``teacher`` is short for ``teacher_model_kind``, and ``batch_size`` is verl's for forward passes.

    >>> settings = read_settings({"credit": "gear:tokens", "alpha": 0.5, "teacher": "base"})
    >>> settings.method.onset_rule, settings.method.alpha, settings.config.teacher_model_kind
    ('never', 0.5, 'base')
    >>> read_settings({"alhpa": 0.5})
    Traceback (most recent call last):
    gear_rl.errors.InputError: gear.alhpa: no such setting of method 'gear' or of the credit step; did ...
    """
    given = dict(section)
    of_text = credit_settings(str(given.pop("credit", "gear")), "gear.credit")
    name, kind = of_text.pop("name"), given.pop("teacher", None)
    if kind is not None:
        if given.get("teacher_model_kind") not in (None, kind):
            raise InputError(f"gear.teacher: {kind!r}, but gear.teacher_model_kind says otherwise; give one")
        given["teacher_model_kind"] = kind
    kind = given.get("teacher_model_kind")
    if kind is not None and given.get("teacher_model") is not None:
        raise InputError(
            f"gear.teacher: {kind!r} names the teacher's weights, and so does gear.teacher_model; leave one out"
        )
    cls = find_method(name, "gear.credit")
    defaults = {f.name: f.default for f in fields(cls)} if is_dataclass(cls) else dict[str, Any]()
    for key, value in of_text.items():
        # Hydra's group holds every default; another value beside the text was given.
        if key not in given or (key in defaults and given[key] == defaults[key]):
            given[key] = value
    known = [*sorted(defaults), *sorted(_ENGINE), "credit", "teacher", *_OBJECTS]
    for key in set(given) - set(known):
        hint = did_you_mean(key, known)
        raise InputError(f"gear.{key}: no such setting of method {name!r} or of the credit step; {hint}")
    method = build_method({"name": name, **{k: v for k, v in given.items() if k in defaults}}, SECTION)
    engine = {key: value for key, value in given.items() if key in _ENGINE}
    if engine.get("credit_batch_size") is None:
        engine["credit_batch_size"] = batch_size or _BATCH_SIZE
    with input_errors("gear."):
        config = EngineConfig(**engine).resolved(method)
        environment, path = (checked_value(key, given.get(key), str | None) for key in _OBJECTS)
    function = None if path is None else import_object(path, "gear.privileged")
    if environment not in (None, "arena"):
        environment_factory(environment, {})  # or every rollout would fail, on a worker
    return VerlSettings(method=method, config=config, privileged=function, environment=environment)


def group_of(name: str) -> dict[str, Any]:
    """The section of a method with every default that is a plain value, for Hydra's group ``gear``."""
    known = [*fields(cast(Any, METHODS[name])), *fields(EngineConfig)]
    plain = {f.name: f.default for f in known if isinstance(f.default, str | int | float | bool | None)}
    return {"credit": name, "teacher": None, **plain, **dict.fromkeys(_OBJECTS)}


def environment_factory(path: str | None, row: Mapping[str, Any]) -> Callable[[], Any]:
    """The class or factory at ``gear.environment``; ``arena`` alone is the environment of the row's source."""
    from gear_rl.runs.trl_run import environment_of

    if path is None:
        raise InputError(
            f"gear.environment: missing, but a row has agent_name={AGENT_NAME}; give package.module:Class"
        )
    if path.partition("/")[0] == "arena":
        dataset = path if "/" in path else str(row.get("data_source", path))
        return environment_of("arena", dataset, "gear.environment")
    return environment_of(path, "", "gear.environment")
