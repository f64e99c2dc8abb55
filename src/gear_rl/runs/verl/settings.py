"""The settings under Hydra's key ``gear``: a method and its own, the credit step's, and what an agent needs.

All stand side by side, as verl's users write settings: ``gear.credit=gear gear.alpha=0.5 gear.teacher=base``.
"""

import dataclasses
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from gear_rl.credit.config import CreditConfig
from gear_rl.credit.contexts import PrivilegedFunction
from gear_rl.data.objects import import_object
from gear_rl.engines.verl.batch import AGENT_NAME
from gear_rl.errors import InputError, did_you_mean
from gear_rl.runs.config import build_method, checked
from gear_rl.types import CreditAssigner

SECTION = "gear"
"""The key of verl's configuration."""
_TEACHER = "teacher"
"""Short for ``teacher_model_kind``."""
_BATCH_SIZE = 8
"""Completions in a forward pass, where verl's own setting says nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerlSettings:
    """What the section says, checked; ``config`` is resolved for the method.

    >>> settings = read_settings({"credit": "gear", "alpha": 0.5, "teacher": "base"})
    >>> settings.method.alpha, settings.config.teacher_model_kind
    (0.5, 'base')
    >>> read_settings({"alhpa": 0.5})
    Traceback (most recent call last):
    gear_rl.errors.InputError: gear.alhpa: no such setting of method 'gear' or of the credit step; did ...
    """

    method: CreditAssigner
    config: CreditConfig
    privileged: PrivilegedFunction | None = None
    environment: str | None = None
    """The environment of the agent loop: ``package.module:Class``, or ``arena/TASK/TIER``."""
    tool_time_limit: float | None = 30.0
    """Seconds for a call of a tool."""
    tool_max_chars: int | None = 20_000
    """Longest answer of a tool."""


_OWN = ("environment", "tool_time_limit", "tool_max_chars")


def read_settings(section: Mapping[str, Any], batch_size: int | None = None) -> VerlSettings:
    """The settings of a section; ``InputError`` names the key, the value and the fix.

    ``batch_size`` is verl's for forward passes, taken where ``credit_batch_size`` is not given.
    """
    given = {str(name): value for name, value in section.items()}
    name = given.pop("credit", "gear")
    kind = given.pop(_TEACHER, None)
    if kind is not None:
        if given.get("teacher_model_kind") not in (None, kind):
            raise InputError(f"gear.teacher: {kind!r}, but gear.teacher_model_kind says otherwise; give one")
        given["teacher_model_kind"] = kind
    hints = typing.get_type_hints(CreditConfig)
    of_step = {f.name for f in dataclasses.fields(CreditConfig)}
    of_method = _method_settings(name)
    for key in given:
        if key not in of_step | of_method | {"privileged", *_OWN}:
            known = [*sorted(of_method), *sorted(of_step), "credit", _TEACHER, "privileged", *_OWN]
            raise InputError(
                f"gear.{key}: no such setting of method {name!r} or of the credit step; "
                f"{did_you_mean(key, known)}"
            )
    method = build_method({"name": name, **{k: v for k, v in given.items() if k in of_method}}, SECTION)
    own = {k: checked(f"gear.{k}", v, hints[k]) for k, v in given.items() if k in of_step}
    if own.get("credit_batch_size") is None:
        own["credit_batch_size"] = batch_size or _BATCH_SIZE
    try:
        config = CreditConfig(**own).resolved(method)
    except ValueError as error:
        raise InputError(f"gear.{error}") from None
    path = given.get("privileged")
    function = None if path is None else cast(PrivilegedFunction, import_object(str(path), "gear.privileged"))
    own_hints = typing.get_type_hints(VerlSettings)
    others = {k: checked(f"gear.{k}", given[k], own_hints[k]) for k in _OWN if k in given}
    return VerlSettings(method=method, config=config, privileged=function, **others)


def _method_settings(name: Any) -> set[str]:
    """The names of a method's own settings."""
    from gear_rl.methods import METHODS

    if not isinstance(name, str):
        raise InputError(f"gear.credit: {name!r} is no name; choose from {', '.join(METHODS)}")
    if ":" in name:
        cls: Any = import_object(name, "gear.credit")
    elif name in METHODS:
        cls = METHODS[name]
    else:
        raise InputError(f"gear.credit: no method {name!r}; {did_you_mean(name, METHODS)}")
    return {f.name for f in dataclasses.fields(cls)} if dataclasses.is_dataclass(cls) else set()


def group_of(name: str) -> dict[str, Any]:
    """The section of a method with the defaults of everything that may be set, for Hydra's group ``gear``.

    Hydra refuses a key that is not here, with its own words. A setting that is no plain value is left out and can
    be added with a plus sign.

    >>> group_of("rlsd")["credit"], "strength" in group_of("rlsd"), "record_file" in group_of("rlsd")
    ('rlsd', True, True)
    """
    from gear_rl.methods import METHODS

    fields = [*dataclasses.fields(cast(Any, METHODS[name])), *dataclasses.fields(CreditConfig)]
    values = {f.name: f.default for f in fields if _is_plain(f.default)}
    own = {f.name: f.default for f in dataclasses.fields(VerlSettings) if f.name in (*_OWN, "privileged")}
    return {"credit": name, _TEACHER: None, **values, **own}


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, str | int | float | bool)


def environment_factory(path: str | None, row: Mapping[str, Any]) -> Callable[[], Any]:
    """What makes the environment that ``gear.environment`` names, for a row of the dataset.

    >>> environment_factory("arena/errands/easy", {})().__class__.__name__
    'ErrandsEnv'
    """
    from gear_rl.arena.task import dataset_task, get_task

    if path is None:
        raise InputError(
            f"gear.environment: missing, but a row has agent_name={AGENT_NAME}; give package.module:Class"
        )
    if ":" in path:
        return cast(Callable[[], Any], import_object(path, "gear.environment"))
    if path.partition("/")[0] != "arena":
        raise InputError(f"gear.environment: {path!r} is no package.module:Class and no arena/TASK/TIER")
    source = path if "/" in path else str(row.get("data_source", path))
    task, tier = dataset_task(source)
    environment = get_task(task).environment(tier)
    if environment is None:
        raise InputError(f"gear.environment: {source!r} has no environment; its completions are judged")
    return environment
