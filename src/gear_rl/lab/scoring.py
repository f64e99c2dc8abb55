"""Where methods put their credit on completions with a known fault; nothing is trained, and no trainer is made.

The completions are the arena's, with a planted fault, or the user's (`gear_rl.lab.marked`). The signals that any
method needs are collected once; each method is then called on them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from gear_rl.arena.task import Case
from gear_rl.credit.credit_config import METHOD_SETTINGS, CreditConfig
from gear_rl.credit.plan import CreditResult
from gear_rl.credit.step import collect, credit_from, prepare
from gear_rl.errors import InputError, input_errors
from gear_rl.lab.localisation import Located, Role, localisation, locate, onsets_of
from gear_rl.lab.material import Material, Pair, rollouts_of
from gear_rl.method_builder import build_method
from gear_rl.signals.signal import names_of
from gear_rl.signals.table import SIGNALS as SIGNALS_BY_NAME
from gear_rl.signals.table import signals_of
from gear_rl.tensor.lists import float_list, int_list
from gear_rl.traits import at_step
from gear_rl.types import Credit, CreditAssigner, Signal, TokenSignals
from gear_rl.versions import versions

_FLOORS = ("uniform", "shuffled", "random_onsets")
"""Placebos that a method has to beat; always measured beside the others."""
_PLAIN = ("gear", "rlsd", *_FLOORS)
"""Methods that are scored whether they were given or not."""
UNINFORMED = "gear_uninformed"
"""GEAR with a teacher that sees the solution of another problem."""
ENTROPY_ONSETS = "entropy_onsets"
"""GEAR whose onsets are sought in the student's entropy alone."""
SIGNALS = {
    "surprise": "student_logprob",
    "entropy": "student_entropy",
    "log_ratio": "log_ratio",
    "divergence": "divergence",
}
"""Signals by themselves, beside the methods that are made from them; ``surprise`` is the student's -log p."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Asks for signals and leaves the advantage as it is: collects what several methods need."""

    name: ClassVar[str] = "reading"
    source: ClassVar[str] = "ours: no method"
    additive: ClassVar[bool] = True
    """So that completions without an advantage are scored too."""

    needs: tuple[str | Signal, ...]

    def __call__(self, advantage_B: Float[Tensor, " B"], signals: TokenSignals) -> Credit:
        return Credit.from_weights(advantage_B, signals.mask.float(), torch.where(signals.mask, 0, -1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A method's credit on the completion with the fault, token by token."""

    case: Case
    trained: list[bool]
    credit: list[float]
    segment: list[int]
    fallback: bool
    signals: Mapping[str, list[float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """A method to score, with its settings, those of the credit step, and what it shares with others."""

    credit: Mapping[str, Any]
    method: CreditAssigner
    config: CreditConfig
    informed: bool
    state: dict[str, Any]

    @property
    def shared(self) -> tuple[Any, ...]:
        """Equal for methods whose rewards, contexts and signals are the same."""
        settings = [
            str(getattr(self.config, name))
            for name in METHOD_SETTINGS
            if not name.startswith("teacher_model")
        ]
        own = [
            signal for signal in signals_of(self.method.needs) if SIGNALS_BY_NAME.get(signal.name) != signal
        ]
        return (self.informed, *settings, "rewards_BR" in names_of(self.method.needs), *own)


def check_names(methods: Mapping[str, dict[str, Any]]) -> None:
    """``InputError`` for a method under a name that a score has for something else.

    >>> check_names({"gear": {"name": "gear"}, "mine": {"name": "rlsd"}})
    """
    for name, credit in methods.items():
        control = name in (UNINFORMED, ENTROPY_ONSETS, *SIGNALS)
        if control or (name in _PLAIN and credit != {"name": name}):
            raise InputError(
                f"--methods: {name!r} is the name of a control; choose another for {credit['name']}"
            )


def score(
    methods: Mapping[str, dict[str, Any]],
    material: Material,
    *,
    progress: Callable[[str, float, int], None] = lambda name, done, total: None,
) -> dict[str, Any]:
    """How well each method's credit finds the faults, as a document for JSON.

    ``methods`` are names to show with their settings; floors, controls and the ceiling are always added. Every
    problem is a group of two: the completion with the fault, and one with a larger reward. They go through the
    credit step as if sampled just now, with the method's engine settings. Measured is the absolute credit of the
    faulty completion's tokens. ``progress`` gets a method, and how many problems are done, and of how many.
    """
    named = {name: {"name": name} for name in _PLAIN} | dict(methods)
    controls = {UNINFORMED: {"name": "gear"}, ENTROPY_ONSETS: {"name": "gear", "onset_signal": "entropy"}}
    kept = credits_of(named | controls, material, progress=progress)
    rows = {
        name: _localised_row(kept[name], role="floor" if name in _FLOORS else "method")
        for name in named
        if name in methods or name in _FLOORS
    }
    rows |= {name: _localised_row(kept[name], role="control") for name in controls}
    for name, signal in SIGNALS.items():
        source = kept["gear" if name in ("entropy", "divergence") else "rlsd"]
        rows[name] = _localised_row(source, role="control", signal=signal)
    rows["oracle"] = _localised_row(kept["uniform"], role="ceiling")
    return {
        **material.about,
        "threads": torch.get_num_threads(),
        "methods": rows,
        "versions": versions(),
    }


def credits_of(
    credits: Mapping[str, dict[str, Any]],
    material: Material,
    *,
    progress: Callable[[str, float, int], None] = lambda name, done, total: None,
) -> dict[str, list[Found]]:
    """What each method, by name, gives the tokens of every faulty completion; `UNINFORMED` sees other solutions.

    ``InputError`` for a method that cannot be scored on these completions.
    """
    together: dict[tuple[Any, ...], dict[str, _Row]] = {}
    for name, credit in credits.items():
        method = build_method(credit)
        config = material.config.resolved(method, announce=False)
        row = _Row(
            credit=credit, method=at_step(method, 0), config=config, informed=name != UNINFORMED, state={}
        )
        together.setdefault(row.shared, {})[name] = row
    found: dict[str, list[Found]] = {name: [] for name in credits}
    done, total = 0, sum(len(rows) * len(material.pairs) for rows in together.values())
    for rows in together.values():
        first = next(iter(rows.values()))
        pairs = material.pairs if first.informed else material.blind
        half = max(1, material.batch // 2)
        for start in range(0, len(pairs), half):
            some = pairs[start : start + half]
            for name, result in _results(rows, some, material):
                progress(name, done, total)
                done += len(some)
                found[name] += [_found_row(pair.case, result, 2 * i) for i, pair in enumerate(some)]
    return found


def _results(
    rows: Mapping[str, _Row], pairs: Sequence[Pair], material: Material
) -> Iterator[tuple[str, CreditResult]]:
    """The credit of each method on some pairs; they share the batch and its signals."""
    first = next(iter(rows.values()))
    needs = tuple(dict.fromkeys(signal for row in rows.values() for signal in signals_of(row.method.needs)))
    batch = rollouts_of(pairs, material.rewards(pairs, first.credit), material.engine)
    plan = prepare(batch, Reading(needs=needs), material.engine, first.config)
    signals = collect(plan, material.engine)
    for name, row in rows.items():
        engine = replace(material.engine, state=row.state)
        own = TokenSignals(
            mask=signals.mask,
            turn_id=signals.turn_id,
            values={name: signals.get(name) for name in names_of(row.method.needs)},
        )
        # A method may need more than one reward function or turn.
        with input_errors(f"--methods: {row.method.name}: "):
            yield name, credit_from(prepare(batch, row.method, engine, row.config), own, engine)


def _found_row(case: Case, result: CreditResult, b: int) -> Found:
    """Row ``b`` of a batch's result, without padding."""
    credit, signals = result.credit, result.signals
    count = sum(map(len, case.faulty))
    return Found(
        case=case,
        trained=[bool(kept) for kept in int_list(signals.mask[b, :count])],
        credit=float_list(credit.advantage[b, :count]),
        segment=int_list(credit.segment_id[b, :count]),
        fallback=bool(torch.stack(list(result.fallback_B.values()))[:, b].any()),
        signals={
            name: float_list(x[b, :count])
            for name, x in signals.values.items()
            if x.shape == signals.mask.shape and result.scored_B[b]
        },
    )


def _localised_row(found: list[Found], *, role: Role, signal: str | None = None) -> dict[str, Any]:
    """Of the credit, or of ``signal`` in its place; the ceiling puts all on the fault."""
    located: list[Located | str] = []
    among_choices: list[Located | str] = []
    for one in found:
        if one.fallback and role != "ceiling":  # its GRPO advantage is not the method's
            located.append("fallback")
            continue
        count = len(one.trained)
        fault = [t in one.case.fault for t in range(count)]
        onset = None
        if role == "ceiling":
            values = [float(wrong) for wrong in fault]
        elif signal is None:
            values, onset = [abs(value) for value in one.credit], onsets_of(one.segment)
        else:
            values = _signal(one, signal)
        decided = [kept and choice for kept, choice in zip(one.trained, one.case.choices, strict=True)]
        located.append(locate(values, fault, one.trained, onset))
        among_choices.append(locate(values, fault, decided, onset))
    return localisation(located, role, among_choices)


def _signal(one: Found, name: str) -> list[float]:
    if not one.signals:
        return [0.0] * len(one.trained)
    if name == "student_logprob":
        return [-value for value in one.signals[name]]
    if name != "log_ratio":
        return list(one.signals[name])
    pairs = zip(one.signals["student_logprob"], one.signals["teacher_logprob"], strict=True)
    return [student - teacher for student, teacher in pairs]  # large where the teacher finds a token unlikely
