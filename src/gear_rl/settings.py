"""Settings that are declared once: a field's annotation is its type and range, the text under it its help.

>>> from dataclasses import replace
>>> @settings_class
... class Halving:
...     share: Share = 0.5
>>> Halving(share=1)
Halving(share=1.0)
>>> replace(Halving(), share=2.0)
Traceback (most recent call last):
ValueError: share: 2.0; give a number from 0 to 1
"""

from collections.abc import Iterable, Mapping
from dataclasses import field, fields
from functools import cache
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    TypeVar,
    Union,
    cast,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

from pydantic import ConfigDict, Field, PydanticUserError, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from gear_rl.errors import InputError, did_you_mean

Share = Annotated[float, Field(ge=0, le=1)]
NotNegative = Annotated[float, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
PositiveShare = Annotated[float, Field(gt=0, le=1)]
Count = Annotated[int, Field(ge=1)]
Whole = Annotated[int, Field(ge=0)]
AroundOne = Annotated[tuple[PositiveShare, Annotated[float, Field(ge=1)]], Field(strict=False)]
"""Two numbers with 1 between them; a list is as good as a tuple."""

T = TypeVar("T")
STRICT = ConfigDict(strict=True, arbitrary_types_allowed=True)
"""True is no number, text is neither, and 8.0 is no whole number."""
_DECLARED: ConfigDict = {
    **STRICT,
    "extra": "forbid",
    "allow_inf_nan": False,
    "use_attribute_docstrings": True,
}


@dataclass_transform(kw_only_default=True, frozen_default=True)
def settings_class(cls: type[T]) -> type[T]:
    """A frozen dataclass whose values are checked when it is made: ``ValueError`` with one line for the first."""
    made: Any = dataclass(frozen=True, slots=True, kw_only=True, config=_DECLARED)(cls)
    make = made.__init__

    def __init__(self: Any, **given: Any) -> None:  # noqa: N807
        try:
            make(self, **given)
        except ValidationError as error:
            raise ValueError(fault_in(error, settings_hints(made), given)) from None

    __init__.__qualname__ = f"{cls.__name__}.__init__"  # in Python's error for a value without a name
    made.__init__ = __init__
    return made


def fault_in(error: ValidationError, hints: Mapping[str, Any], given: Mapping[str, Any]) -> str:
    """The first fault of ``given``, the values for fields of these types: the field, the value and the fix."""
    first = error.errors()[0]
    if not first["loc"]:  # from __post_init__, which names the field
        return str(first["ctx"]["error"])  # pyright: ignore
    name = str(first["loc"][0])
    if name not in hints:
        return f"{name}: no such setting; {did_you_mean(name, hints)}"
    if name not in given:
        return f"{name}: missing; give {hint_in_words(hints[name])}"
    return _value_fault(name, given[name], hints[name])


def checked_value(name: str, value: Any, hint: Any) -> Any:
    """The value as a setting of the type ``hint`` has it; ``InputError`` for another type or out of its range.

    >>> checked_value("learning_rate", 1, float)
    1.0
    >>> checked_value("learning_rate", True, float)
    Traceback (most recent call last):
    gear_rl.errors.InputError: learning_rate: True; give a number
    """
    try:
        return TypeAdapter(hint, config=STRICT).validate_python(value)
    except ValidationError:
        raise InputError(_value_fault(name, value, hint)) from None
    except PydanticUserError:
        return value  # a type that pydantic cannot check


def check_settings(settings: object, names: Iterable[str]) -> None:
    """``checked_value`` for these fields of a dataclass that may be changed, such as ``CreditConfig``."""
    hints = settings_hints(type(settings))
    for name in names:
        checked_value(name, getattr(settings, name), hints[name])


def setting_field(default: Any, help: str) -> Any:
    """A field with its help where TRL's command lines look for it."""
    return field(default=default, metadata={"help": help})


@cache
def settings_hints(declared: type) -> dict[str, Any]:
    """Type and range of every field of a dataclass.

    >>> from gear_rl.traits import Distillation
    >>> hint_in_words(settings_hints(Distillation)["top_k"])
    'a whole number of 1 or more, or None'
    """
    hints = get_type_hints(declared, include_extras=True)
    return {one.name: hints[one.name] for one in fields(cast(Any, declared))}


def settings_of(declared: Any, mark: str = "") -> list[dict[str, Any]]:
    """Every setting of a ``settings_class``: name, default, type, choices, what it takes in words, and help.

    ``mark`` stands around code in the help.

    >>> from gear_rl.methods import Opsd
    >>> {row["name"]: row["default"] for row in settings_of(Opsd)}
    {'strength': 1.0, 'beta': 0.5, 'temperature': 1.1, 'top_k': None, 'sampled': False}
    """
    rows, hints, plain = list[dict[str, Any]](), settings_hints(declared), get_type_hints(declared)
    own = [getattr(base, "__pydantic_fields__", {}) for base in reversed(declared.__mro__)]
    helps = {name: one.description for known in own for name, one in known.items() if one.description}
    helps = {name: " ".join(text.replace("``", mark).split()) for name, text in helps.items()}
    for one in fields(declared):
        hint, default = plain[one.name], one.default
        choices = list(get_args(hint)) if get_origin(hint) is Literal else None
        row = {"name": one.name, "default": getattr(default, "name", default)}
        row |= {"type": hint.__name__ if isinstance(hint, type) else "choice" if choices else str(hint)}
        row |= {"choices": choices, "takes": hint_in_words(hints[one.name])}
        rows.append(row | {"help": helps.get(one.name)})
    return rows


def hint_in_words(hint: Any) -> str:
    """What a setting of a type takes, as the end of an error message.

    >>> hint_in_words(Share | None), hint_in_words(Literal["mean", "sum"]), hint_in_words(AroundOne)
    ('a number from 0 to 1, or None', 'mean or sum', '[a number above 0, at most 1; a number of 1 or more]')
    """
    origin, kinds = get_origin(hint), get_args(hint)
    if origin is Annotated:
        limits = [limit for one in kinds[1:] for limit in getattr(one, "metadata", (one,))]
        return hint_in_words(kinds[0]) + _range_in_words(limits)
    if origin is Literal:
        return " or ".join(filter(None, (", ".join(kinds[:-1]), kinds[-1])))
    if origin in (Union, UnionType):
        return ", or ".join(map(hint_in_words, kinds))
    if origin is tuple:
        return f"[{'; '.join('...' if kind is ... else hint_in_words(kind) for kind in kinds)}]"
    if origin is list:
        return f"a list of {hint_in_words(kinds[0]).removeprefix('a ')}s"
    return _WORDS.get(origin or hint) or getattr(hint, "name", None) or f"a {getattr(hint, '__name__', hint)}"


_WORDS = {
    float: "a number", int: "a whole number", bool: "true or false", str: "text", NoneType: "None",
    dict: "a mapping",
}  # fmt: skip


def _range_in_words(limits: list[Any]) -> str:
    words = {"ge": " of {} or more", "gt": " above {}", "le": " at most {}", "lt": " below {}"}
    words["min_length"] = " of length {} or more"
    found = {key: getattr(one, key) for one in limits for key in words if hasattr(one, key)}
    if found.keys() == {"ge", "le"}:
        return f" from {found['ge']} to {found['le']}"
    return ",".join(words[key].format(limit) for key, limit in found.items())


def _value_fault(name: str, value: Any, hint: Any) -> str:
    words = hint_in_words(hint)
    quoted = ", in quotes" if isinstance(value, int | float) and "text" in words else ""
    return f"{name}: {value!r:.200}; give {words}{quoted}"
