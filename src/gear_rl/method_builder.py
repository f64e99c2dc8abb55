"""A method from its name and settings, written as ``name:setting=value``, in a file, in flags or in Python."""

import re
from collections.abc import Mapping
from dataclasses import is_dataclass
from importlib.util import find_spec
from typing import Any, cast

from gear_rl.errors import InputError, did_you_mean
from gear_rl.methods import METHODS
from gear_rl.settings import checked_value, settings_hints
from gear_rl.traits import method_settings
from gear_rl.types import CreditAssigner
from gear_rl.user_objects import import_object
from gear_rl.yaml_values import parse_word

COMBINED = re.compile(rf"\s*([*+])\s*(?=(?:{'|'.join(METHODS)})\b(?!-))")
"""Between two methods that are mixed, as in ``gear*stare``; not the plus of ``1e+3``."""
_INSIDE = re.compile(rf"=(?:{'|'.join(METHODS)})\b[^,]*$")
"""What stands before a sign that belongs to a method inside a method, as in ``shuffled:of=gear*stare``."""
COMMA = re.compile(r',(?![^\[]*\])(?![^(]*\))(?=(?:[^"]*"[^"]*")*[^"]*$)')
"""Between two methods or settings, not in a list, as in ``clip=[0.5,2]`` or ``clip=(0.5,2)``, nor in double
quotes."""
_OBJECT = re.compile(rf"(?!(?:{'|'.join(METHODS)}):)[\w.]+:\w+(?=:|$)")
"""A method of the user's own, ``package.module:object``."""


def credit_settings(credit: Any, where: str = "credit") -> dict[str, Any]:
    """The name of a method and its settings, of ``name:setting=value,setting=value`` or a mapping of them.

    A name may be ``package.module:object``. A dot leads into a method inside a method; a word without a value is
    one of the method's ``presets``, which a setting beside it overrides, whatever their order. ``a*b`` mixes two
    methods by the product of their weights, ``a+b`` by the sum of their advantages, in equal shares.
    ``InputError`` begins with ``where``.

    >>> credit_settings("gear:alpha=.5,end_rule=turn,clip=(0.5, 2)")
    {'name': 'gear', 'alpha': 0.5, 'end_rule': 'turn', 'clip': [0.5, 2]}
    >>> credit_settings("shuffled:of.alpha=1"), credit_settings("mine.methods:Mine:width=3")
    ({'name': 'shuffled', 'of': {'alpha': 1}}, {'name': 'mine.methods:Mine', 'width': 3})
    >>> credit_settings({"name": "gear:tokens", "alpha": 2})
    {'name': 'gear', 'onset_rule': 'never', 'alpha': 2}
    >>> credit_settings("uniform+rlsd:strength=1")["second"], credit_settings("gear*stare")["how"]
    ({'name': 'rlsd', 'strength': 1}, 'product')
    """
    if isinstance(credit, str):
        return _settings_in(credit.strip(), where)
    if not isinstance(credit, Mapping):
        why = "is no method; give a name, {name: METHOD, SETTING: VALUE}, or in Python an object"
        raise InputError(f"{where}: {credit!r:.200} {why}")
    settings = cast(Mapping[str, Any], credit)
    if not isinstance(settings.get("name"), str):
        raise InputError(f"{where}.name: missing; choose from {', '.join(METHODS)}")
    return {**credit_settings(settings["name"], where), **{k: v for k, v in settings.items() if k != "name"}}


def _settings_in(text: str, where: str) -> dict[str, Any]:
    signs = [found for found in COMBINED.finditer(text) if not _INSIDE.search(text[: found.start()])]
    if signs:
        sums = [found for found in signs if found[1] == "+"]
        sign = (sums or signs)[0]  # a product binds more tightly
        parts = (text[: sign.start()], text[sign.end() :])
        first, second = (credit_settings(part, where) for part in parts)
        how = {"how": "sum", "share": 1 / (len(sums) + 1)} if sums else {"how": "product"}
        return {"name": "mixed", "first": first, "second": second, **how}
    own = _OBJECT.match(text)
    name, rest = (own[0], text[own.end() + 1 :]) if own else text.partition(":")[::2]
    name = name.strip()
    presets: Mapping[str, Mapping[str, Any]] = getattr(METHODS.get(name), "presets", {})
    preset, settings, given = dict[str, Any](), dict[str, Any](), dict[str, Any]()
    for part in COMMA.split(rest) if rest else ():
        key, equals, value = map(str.strip, part.partition("="))
        if equals and key in given:
            raise InputError(f"{where}: {text!r} sets {key} twice; leave one out")
        if equals:
            given[key] = parse_word(value)
        elif key in presets:
            preset |= presets[key]
        else:
            find_method(name, where)
            known = f", or {', '.join(f'{name}:{preset}' for preset in presets)}" if presets else ""
            raise InputError(f"{where}: {key!r} in {text!r} is no setting; write {name}:SETTING=VALUE{known}")
    for key in sorted(given, key=lambda key: key.count(".")):  # a method before what is set inside it
        put_setting(settings, key, given[key], where)
    return {"name": name, **preset, **settings}


def put_setting(values: dict[str, Any], key: str, value: Any, where: str) -> None:
    """Set a dotted key; a name along the path (``credit: gear``) becomes ``{name: gear}``.

    >>> values = {"credit": "shuffled"}
    >>> put_setting(values, "credit.of.alpha", 3, "--credit.of.alpha")
    >>> values
    {'credit': {'name': 'shuffled', 'of': {'alpha': 3}}}
    """
    first, _, rest = key.partition(".")
    if not rest:
        values[first] = value
        return
    inner: Any = values.get(first) or {}
    inner = {"name": inner} if isinstance(inner, str) else inner
    if not isinstance(inner, Mapping):
        raise InputError(f"{where}: {first} is {inner!r} and has no settings of its own")
    values[first] = dict(cast(Mapping[str, Any], inner))
    put_setting(values[first], rest, value, where)


def build_method(credit: Any, where: str = "credit") -> CreditAssigner:
    """The method that ``credit`` is, or describes as ``credit_settings`` reads it, each setting checked.

    ``InputError``, a ``ValueError``, names the setting, the value and the fix after ``where``.

    >>> build_method({"name": "gear", "alpha": 0.25}).alpha, build_method("gear:alpha=.5").alpha
    (0.25, 0.5)
    >>> build_method("geer:tokens")
    Traceback (most recent call last):
    gear_rl.errors.InputError: credit: no method 'geer'; did you mean gear?
    """
    if isinstance(credit, CreditAssigner) and not isinstance(credit, type):
        return credit
    settings = credit_settings(credit, where)
    name = settings.pop("name")
    method = find_method(name, where)
    if isinstance(method, type) and is_dataclass(method):
        method = _build(method, name, settings, where)
    elif settings:
        raise InputError(f"{where}: {name} is no dataclass, so it takes no settings: {settings}")
    if isinstance(method, type) or not isinstance(method, CreditAssigner):
        parts, made = ("name", "source", "needs", "__call__"), cast(Any, method)
        lacks = ", ".join(part for part in parts if not hasattr(made, part))
        lacks = "the decorator dataclass" if isinstance(method, type) else lacks
        raise InputError(f"{where}: {name} is no method, since it lacks {lacks} (docs/your-method.md)")
    return method


def find_method(name: str, where: str) -> Any:
    """The class of the catalogue, or the user's own object ``package.module:object``."""
    if name in METHODS:
        return METHODS[name]
    first = re.split("[.:]", name)[0]
    hint = did_you_mean(first, METHODS)
    try:
        if ":" in name:
            return import_object(name, where)
    except InputError:
        if not hint.endswith("?") or find_spec(first) is not None:
            raise
    raise InputError(f"{where}: no method {first!r}; {hint}")


def _build(cls: Any, name: str, settings: Mapping[str, Any], where: str) -> Any:
    """The object of a dataclass with these settings, each checked; a method inside it is built too."""
    hints, made = settings_hints(cls), dict[str, Any]()
    for key, value in settings.items():
        if key not in hints:
            raise InputError(f"{where}.{key}: no such setting of {name!r}; {did_you_mean(str(key), hints)}")
        if hasattr(hints[key], "needs"):  # a method
            default = cls.__dataclass_fields__[key].default
            if isinstance(value, Mapping) and "name" not in value and isinstance(default, CreditAssigner):
                value = {**method_settings(default), **cast(Mapping[str, Any], value)}
            made[key] = build_method(value, f"{where}.{key}")
        else:
            made[key] = value
    try:
        made = {key: checked_value(key, value, hints[key]) for key, value in made.items()}
        return cls(**made)
    except (TypeError, ValueError) as error:
        raise InputError(f"{where}.{error}") from None
