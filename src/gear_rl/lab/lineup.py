"""Which methods are compared: from the text of ``--methods`` to their settings and those of the engine."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any, cast

from gear_rl.credit.credit_config import CreditConfig
from gear_rl.errors import InputError, input_errors
from gear_rl.lab.oracle import ORACLE
from gear_rl.method_builder import COMBINED, COMMA, build_method, credit_settings
from gear_rl.methods import METHODS
from gear_rl.traits import engine_settings_of, is_even

BASELINE = "uniform"
"""GRPO: in every comparison."""
CEILING = "oracle"
"""The control with the true advantages."""
SFT = "sft"
"""The row that fine-tunes on the privileged text; as a setting of a method, the share of the steps that do."""
_SETTINGS = {field.name for cls in (CreditConfig, *METHODS.values()) for field in fields(cast(Any, cls))}


def split_methods(text: str) -> list[str]:
    """The methods of a list with commas; a part that follows a colon and names no method is a setting.

    >>> split_methods("gear:alpha=0.5,sign_mode=aware,shuffled")
    ['gear:alpha=0.5,sign_mode=aware', 'shuffled']
    >>> split_methods("gear:alpha=2,end_rule=turn*stare:share=0.2")
    ['gear:alpha=2,end_rule=turn*stare:share=0.2']
    >>> split_methods("gear:alpha=2,teacher_contrast=shuffled,mine=rlsd")
    ['gear:alpha=2,teacher_contrast=shuffled', 'mine=rlsd']
    """
    methods: list[str] = []
    for part in COMMA.split(text):
        head = COMBINED.split(part)[0]
        key, equals, value = map(str.strip, head.partition("="))
        # A method's name may be a setting's value too.
        is_method = value in (*METHODS, CEILING, SFT) and key.partition(".")[0] not in _SETTINGS
        if methods and ":" in methods[-1] and equals and ":" not in head and not is_method:
            methods[-1] += f",{part.strip()}"
        elif part.strip():
            methods.append(part.strip())
    if not methods:
        raise InputError("--methods: empty; name one or more, with commas between them")
    return methods


def parse_method(text: str) -> tuple[str, dict[str, Any]]:
    """``gear`` or ``gear:sign_mode=aware,alpha=0.5``: the name it is compared under, and its settings.

    >>> parse_method("blaming=gear:sign_mode=aware")  # a shorter name
    ('blaming', {'name': 'gear', 'sign_mode': 'aware'})
    >>> parse_method("sft"), parse_method("uniform:sft=0.5")  # fine-tuning, and GRPO after half of the steps
    (('sft', {'name': 'uniform', 'sft': 1.0}), ('uniform:sft=0.5', {'name': 'uniform', 'sft': 0.5}))
    >>> parse_method("random_onsets:of.alpha=1")  # a setting of the method that a placebo is made of
    ('random_onsets:of.alpha=1', {'name': 'random_onsets', 'of': {'alpha': 1}})
    """
    text = text.strip()
    shown, given, rest = text.partition("=")
    if given and ":" not in shown:
        own_name, credit = parse_method(rest)
        if not shown.strip() or "," in shown or own_name != rest.strip():
            raise InputError(f"--methods: {text!r}; give one name without a comma, as in mine=gear:alpha=2")
        return shown.strip(), credit
    credit = credit_settings(text, "--methods")
    stands_for = {CEILING: ORACLE, SFT: {"name": BASELINE, SFT: 1.0}}.get(credit["name"], {})
    return text, credit | stands_for | ({SFT: credit[SFT]} if SFT in credit else {})


def parse_methods(texts: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Names and settings of all; ``InputError`` for two methods of one name, or a control's name for another.

    >>> parse_methods(["uniform", "gear:alpha=0.5"])
    {'uniform': {'name': 'uniform'}, 'gear:alpha=0.5': {'name': 'gear', 'alpha': 0.5}}
    """
    named: dict[str, dict[str, Any]] = {}
    for name, credit in map(parse_method, texts):
        if name.partition("@")[0] in (BASELINE, CEILING, SFT) and credit != parse_method(name)[1]:
            raise InputError(
                f"--methods: {name!r} is the name of a control; choose another for {credit['name']}"
            )
        if named.setdefault(name, credit) != credit:
            raise InputError(f"--methods: {name!r} stands for {named[name]} and for {credit}; rename one")
    return named


def line_up(
    methods: Sequence[str], usual: Mapping[str, Any] = {}, *, agent: bool = False, whole: int = 1
) -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, Any]], dict[str, dict[str, Any]], str | None]:
    """Methods by name, the engine settings of each, its own ``rollouts`` and ``sft``, and the ceiling's name.

    The baseline comes first, then the ceiling: the first oracle; a plain ``oracle`` after another one is dropped.
    ``usual`` are the run's engine settings: they replace a method's own, but not those given with the method.
    A method's ``rollouts`` are a multiple of ``whole``.

    >>> line_up(["gear:teacher_model_kind=live,alpha=2", "oracle:branches=16", "oracle"])[3]
    'oracle:branches=16'
    """
    given = parse_methods(methods)
    ceiling = next((name for name, credit in given.items() if credit["name"] == ORACLE["name"]), None)
    if ceiling != CEILING:
        given.pop(CEILING, None)
    first = (BASELINE,) if ceiling is None else (BASELINE, ceiling)
    named = {name: given.get(name, {"name": name}) for name in first} | given
    engine: dict[str, dict[str, Any]] = {}
    own: dict[str, dict[str, Any]] = {}
    for name, credit in named.items():
        own[name] = take_settings(credit, ("rollouts", SFT))
        if agent and SFT in own[name]:
            raise InputError(
                f"--methods: {name}: an agent's answers cannot be imitated without its tools; take raft, which "
                "fine-tunes on its best rollouts"
            )
        rollouts = own[name].get("rollouts", whole)
        if not isinstance(rollouts, int) or rollouts < 1 or rollouts % whole:
            raise InputError(f"--methods: {name}: rollouts: {rollouts}; give a multiple of {whole}")
        if not (isinstance(own[name].get(SFT, 0), int | float) and 0 <= own[name].get(SFT, 0) <= 1):
            raise InputError(f"--methods: {name}: sft: {own[name][SFT]}; give a share of the steps, 0 to 1")
        given_here = take_settings(credit, [field.name for field in fields(CreditConfig)])
        method = build_method(credit)
        _check_placebo(name, method)
        engine[name] = engine_settings_of(method) | dict(usual) | given_here
        with input_errors(f"--methods: {name}: "):
            CreditConfig(**engine[name])
    return named, engine, own, ceiling


def _check_placebo(name: str, method: Any) -> None:
    """``InputError`` for a placebo that is the method it is made of."""
    why = None
    if method.name == "shuffled" and is_even(method.of):
        why = f"{method.of.name!r} gives all tokens of a completion the same, so there is nothing to shuffle"
    if method.name == "random_onsets" and method.of.onset_rule == "never":
        why = "there are no onsets to move; take shuffled with these settings"
    if why is not None:
        raise InputError(f"--methods: {name} is no placebo: {why}")


def take_settings(credit: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Takes these settings out of a method, and out of the methods inside it.

    >>> credit = {"name": "mixed", "first": {"name": "gear", "teacher_model_kind": "live"}}
    >>> take_settings(credit, ["teacher_model_kind"]), credit
    ({'teacher_model_kind': 'live'}, {'name': 'mixed', 'first': {'name': 'gear'}})
    """
    found = {name: credit.pop(name) for name in names if name in credit}
    for value in list(credit.values()):
        if isinstance(value, dict):
            found |= take_settings(cast(dict[str, Any], value), names)
    return found
