"""The catalogue: one file per method, one line per file. Knows no forward pass and no engine."""

import json
import re
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from gear_rl.errors import did_you_mean
from gear_rl.methods.agent_opsd import AgentOpsd
from gear_rl.methods.antisd import AntiSd
from gear_rl.methods.cast import Cast
from gear_rl.methods.crpo import Crpo
from gear_rl.methods.distilled_rl import DistilledRl
from gear_rl.methods.entropy_forks import EntropyForks
from gear_rl.methods.fixed_spans import FixedSpans
from gear_rl.methods.gear import Gear
from gear_rl.methods.gigpo import Gigpo
from gear_rl.methods.grail import Grail
from gear_rl.methods.igpo import Igpo
from gear_rl.methods.mixed import Mixed
from gear_rl.methods.mt_grpo import MtGrpo
from gear_rl.methods.oar import OarG, OarP
from gear_rl.methods.opsd import Opsd
from gear_rl.methods.raft import Raft
from gear_rl.methods.random_onsets import RandomOnsets
from gear_rl.methods.rlcsd import Rlcsd
from gear_rl.methods.rlsd import Rlsd
from gear_rl.methods.sc_grpo import ScGrpo
from gear_rl.methods.sdpg import Sdpg
from gear_rl.methods.sdpo import Sdpo
from gear_rl.methods.serl import Serl
from gear_rl.methods.shear import Shear
from gear_rl.methods.shuffled import Shuffled
from gear_rl.methods.stare import Stare
from gear_rl.methods.step_scores import StepScores
from gear_rl.methods.uniform import Uniform
from gear_rl.traits import method_settings
from gear_rl.types import CreditAssigner

METHODS: dict[str, type[CreditAssigner]] = {
    cls.name: cls
    for cls in (
        Uniform,
        Gear,
        Rlsd,
        Serl,
        Rlcsd,
        ScGrpo,
        DistilledRl,
        Cast,
        AntiSd,
        EntropyForks,
        Stare,
        FixedSpans,
        OarP,
        OarG,
        Grail,
        Shear,
        Gigpo,
        MtGrpo,
        Igpo,
        StepScores,
        AgentOpsd,
        Crpo,
        Opsd,
        Sdpo,
        Sdpg,
        Raft,
        Mixed,
        Shuffled,
        RandomOnsets,
    )
}
"""Every method by its name; a file of this folder that is missing here fails a test."""
COMBINED = re.compile(rf"\s*([*+])\s*(?=(?:{'|'.join(METHODS)})\b(?!-))")
"""Between two methods that are mixed, as in ``gear*stare``; not the plus of ``1e+3``."""
_INSIDE = re.compile(rf"=(?:{'|'.join(METHODS)})\b[^,]*$")
"""What stands before a sign that belongs to a method inside a method, as in ``shuffled:of=gear*stare``."""
COMMA = re.compile(r',(?![^\[]*\])(?=(?:[^"]*"[^"]*")*[^"]*$)')
"""Between two methods or settings, not in a list, as in ``clip=[0.5,2]``, nor in quotes."""


def settings_in(text: str) -> dict[str, Any]:
    """The name and the settings in ``name`` or ``name:setting=value,setting=value``.

    A dot leads into a method inside a method; a word without a value is one of the method's ``presets``.
    ``a*b`` mixes two methods by the product of their weights, ``a+b`` by the sum of their advantages, in equal
    shares. ``ValueError`` for a word that is neither setting nor preset.

    >>> settings_in("gear:alpha=0.5,end_rule=turn,clip=[0.5, 2]")
    {'name': 'gear', 'alpha': 0.5, 'end_rule': 'turn', 'clip': [0.5, 2]}
    >>> settings_in("shuffled:of.alpha=1")
    {'name': 'shuffled', 'of': {'alpha': 1}}
    >>> settings_in("gear:tokens,alpha=2")
    {'name': 'gear', 'onset_rule': 'never', 'alpha': 2}
    >>> settings_in("uniform+rlsd:strength=1")["second"], settings_in("gear*stare")["how"]
    ({'name': 'rlsd', 'strength': 1}, 'product')
    """
    signs = [found for found in COMBINED.finditer(text) if not _INSIDE.search(text[: found.start()])]
    if signs:
        sums = [found for found in signs if found[1] == "+"]
        sign = (sums or signs)[0]  # a product binds more tightly
        mixed = {
            "name": "mixed",
            "first": settings_in(text[: sign.start()]),
            "second": settings_in(text[sign.end() :]),
        }
        share = 1 / (len(sums) + 1)
        return mixed | ({"how": "product"} if not sums else {"how": "sum", "share": share})
    name, _, rest = text.partition(":")
    settings: dict[str, Any] = {"name": name.strip()}
    presets: Mapping[str, Mapping[str, Any]] = getattr(METHODS.get(name.strip()), "presets", {})
    for part in COMMA.split(rest) if rest else ():
        key, equals, value = part.partition("=")
        if key.strip() in presets and not equals:
            settings |= presets[key.strip()]
            continue
        if not equals and name.strip() not in METHODS:
            why = f"no method {name.strip()!r}; {did_you_mean(name, METHODS)}"
            raise ValueError(
                f"credit: {why} A method of your own is module:Mine in a command, Mine() in Python"
            )
        if not equals:
            known = f", or {', '.join(f'{name}:{preset}' for preset in presets)}" if presets else ""
            raise ValueError(f"{part!r} in {text!r} is no setting; write {name}:SETTING=VALUE{known}")
        *outer, last = key.strip().split(".")
        inner = settings
        for step in outer:
            if isinstance(inner.get(step), str):
                inner[step] = settings_in(inner[step])
            inner = inner.setdefault(step, {})
        value = value.strip()
        try:
            inner[last] = json.loads({"True": "true", "False": "false", "None": "null"}.get(value, value))
        except ValueError:
            inner[last] = value
    return settings


def method_of(text: str) -> CreditAssigner:
    """The method of the catalogue that ``settings_in`` the text describe.

    >>> method_of("gear:alpha=0.5").alpha
    0.5
    >>> method_of("geer")
    Traceback (most recent call last):
    ValueError: credit: no method 'geer'; did you mean gear?
    """
    return _made(settings_in(text), text)


def _made(settings: Mapping[str, Any], text: str) -> CreditAssigner:
    name = settings["name"]
    if name not in METHODS:
        raise ValueError(f"credit: no method {name!r}; {did_you_mean(name, METHODS)}")
    cls: Any = METHODS[name]
    usual = {field.name: field.default for field in fields(cls)}
    given: dict[str, Any] = {key: value for key, value in settings.items() if key != "name"}
    for key, value in given.items():
        if key not in usual:
            why = f"method {name!r} has no such setting; {did_you_mean(key, usual)}"
            raise ValueError(f"credit.{key}: {why}")
        default = usual[key]
        if isinstance(default, CreditAssigner):  # a method inside a method, as text or as settings
            inner: dict[str, Any] = settings_in(value) if isinstance(value, str) else value
            if "name" not in inner:  # settings of the default method
                inner = {**method_settings(default), **inner}
            given[key] = _made(inner, text)
    try:
        return cls(**given)
    except TypeError as error:
        raise ValueError(f"credit: {text!r}: {error}") from None


__all__ = [
    "METHODS",
    "AgentOpsd",
    "AntiSd",
    "Cast",
    "Crpo",
    "DistilledRl",
    "EntropyForks",
    "FixedSpans",
    "Gear",
    "Gigpo",
    "Grail",
    "Igpo",
    "Mixed",
    "MtGrpo",
    "OarG",
    "OarP",
    "Opsd",
    "Raft",
    "RandomOnsets",
    "Rlcsd",
    "Rlsd",
    "ScGrpo",
    "Sdpg",
    "Sdpo",
    "Serl",
    "Shear",
    "Shuffled",
    "Stare",
    "StepScores",
    "Uniform",
    "method_of",
    "settings_in",
]
