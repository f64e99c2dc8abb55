"""The table of ``gear plan``."""

from collections.abc import Mapping
from typing import Any

from gear_rl.cli.results import Cells

_PARTS = {
    "generation": "generation",
    "old_logprob": "old log-probs",
    "update": "forward and backward",
    "teacher": "teacher's forward",
    "signals": "its head product, with the signals",
    "student": "a student pass for the signals",
}
_ONLY_GEAR = ("teacher", "signals", "student")


def plan_cells(plan: Mapping[str, Any]) -> Cells:
    """What ``planned`` gives, as a table; ``error`` is that of the calibration, or None.

    >>> from gear_rl.lab.plan import Step, architecture, planned
    >>> plan = planned("Qwen3-4B", architecture("Qwen3-4B"), "h200", Step())
    >>> plan_cells(plan | {"error": None}).rows[-1]
    ('whole step', '754.3', '807.7')
    """
    step = plan["step"]
    title = (
        f"{plan['model']} ({plan['params'] / 1e9:.2f}B) on {step['gpus']} x {plan['gpu']}, "
        f"{step['prompts']} x {step['group']} completions of {step['tokens']} tokens, prompts of "
        f"{step['prompt']} and {step['teacher_prompt']}; seconds a step"
    )
    return Cells(title, ("", "GRPO", "GEAR"), _plan_rows(plan), _below_the_plan(plan))


def _plan_rows(plan: Mapping[str, Any]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for name, label in _PARTS.items():
        if (seconds := plan["seconds"][name]) > 0:
            rows.append((label, "" if name in _ONLY_GEAR else f"{seconds:.1f}", f"{seconds:.1f}"))
    given = plan["designs"]["as given"]
    return [*rows, ("whole step", f"{given['grpo']:.1f}", f"{given['gear']:.1f}")]


def _below_the_plan(plan: Mapping[str, Any]) -> list[str]:
    given, (low, high) = plan["designs"]["as given"], plan["range"]
    others = [(name, each) for name, each in plan["designs"].items() if name != "as given"]
    rates = ", ".join(f"{name} {share:.2f}" for name, share in plan["rates"].items())
    return [
        f"GEAR takes {given['ratio']:.3f} of GRPO's step, {given['ratio_without_generation']:.3f} without "
        f"generation; {low:.3f} to {high:.3f} over the shares that one sees reported.",
        *(f"{name[0].upper()}{name[1:]}: {each['ratio']:.3f}." for name, each in others),
        _memory_words(plan["fullest_gib"]),
        f"Assumed, not measured: these shares of the data sheet: {rates}.",
        f"Not known: {'; '.join(plan['unknown'])}.",
        _error_words(plan["error"]),
    ]


def _memory_words(gib: Mapping[str, float]) -> str:
    fullest = max(value for name, value in gib.items() if name != "there")
    fits = "fits" if fullest < 0.9 * gib["there"] else "does not fit"
    return (
        f"Memory of a GPU: {gib['generation']:.1f} GiB while generating, {gib['update, GRPO']:.1f} in GRPO's "
        f"update and {gib['update, GEAR']:.1f} in GEAR's, of {gib['there']:.1f}: {fits} with a tenth to spare."
    )


def _error_words(error: Mapping[str, Any] | None) -> str:
    if error is None:
        return (
            "How far off this is has not been checked: `python -m benchmarks calibration` does it on a CPU."
        )
    return (
        f"Where the model could be checked, it was off by up to {error['step']:.0%} in the seconds of a step and "
        f"{error['ratio']:.0%} in GEAR over GRPO (small models, {error['machine']}, shares fitted there); a GPU "
        "may be further off."
    )
