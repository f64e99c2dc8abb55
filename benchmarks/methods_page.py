"""What pages say of the methods: docstrings, settings and the costs that were measured."""

import inspect
import re
from typing import Any

from gear_rl.methods import METHODS
from gear_rl.settings import settings_of
from gear_rl.signals.signal import names_of
from gear_rl.traits import distillation_of, engine_settings_of

SAME = 3
"""From so many equal settings on, a method refers to an earlier one for them."""

FIRST = {
    "gear": "Take the preset `gear:tokens` on natural text. Two settings matter: `departures`, and in the engine "
    "`teacher_model_kind: base`. `alpha` sets the strength."
}
"""What stands before a method's long list."""


def settings_page() -> str:
    """The page of the site with every method's settings, which the repository does not hold."""
    settings = {name: _settings(cls) for name, cls in METHODS.items()}
    parts = [
        "# Settings of the methods",
        "Each with its default. Set them in [any of these ways](../training.md#from-a-file); "
        "`gear methods NAME` prints the same. [Methods](../methods.md) has the formulas.",
    ]
    for number, (name, lines) in enumerate(settings.items()):
        before = {earlier: settings[earlier] for earlier in list(settings)[:number]}
        if lines:
            first = [f"{FIRST[name]}\n"] if name in FIRST else []
            parts += [f"## {name}", "\n".join([*first, *_shortened(lines, before)])]
    return "\n\n".join(parts) + "\n"


def costs_table(costs: dict[str, Any]) -> str:
    """What each method needs, and what its step costs by the result of ``python -m benchmarks methods``."""
    lines = ["| method | needs | step / GRPO's |", "|---|---|---|"]
    for name, cls in METHODS.items():
        row = costs["methods"].get(name)
        cost = "" if row is None else f"{row['ratio']:.2f} ({row['least']:.2f}-{row['most']:.2f})"
        needs = ", ".join(f"`{signal}`" for signal in names_of(cls().needs))
        teacher = "a teacher in the loss" if distillation_of(cls()) is not None else ""
        needs = "; ".join(filter(None, (needs, teacher))) or "nothing"
        lines.append(f"| [`{name}`](../docs/methods.md#{name}) | {needs} | {cost} |")
    lines += [
        "",
        "*Step / GRPO's*: CPU seconds of a training step over those of `uniform`, median of "
        f"{costs['repeats']} repeats (least to most), on a CPU with {costs['threads']} thread, "
        f"{costs['task']}/{costs['tier']}, {costs['rollouts_per_step']} rollouts a step and "
        "a model of 0.84M parameters; other sizes have other ratios. Measured by "
        f"`python -m benchmarks methods --steps {costs['steps']} --repeats {costs['repeats']} "
        f"--rollouts {costs['rollouts_per_step']} --out src/gear_rl/cli/method_costs.json` "
        f"with torch {costs['versions'].get('torch')}, trl {costs['versions'].get('trl')}, transformers "
        f"{costs['versions'].get('transformers')}.",
    ]
    return "\n".join(lines) + "\n"


def section_of(cls: Any) -> str:
    """A method's docstring without its examples, and what it sets in the engine."""
    prose = re.sub(r"^>>> .*?(^$|\Z)", "", inspect.getdoc(cls) or "", flags=re.MULTILINE | re.DOTALL)
    lines = [prose.strip().replace("``", "`")]
    declared = engine_settings_of(cls())
    if declared:
        engine = ", ".join(f"`{key}: {value}`" for key, value in declared.items())
        lines += ["", f"Engine settings: {engine}."]
    return "\n".join(lines) + "\n"


def _settings(cls: Any) -> dict[str, str]:
    """Name of each setting, and its line."""
    lines: dict[str, str] = {}
    for setting in settings_of(cls, mark="`"):
        text = setting["help"]
        choices: list[str] = setting["choices"] or []
        if any(choice not in text for choice in choices):
            text += f" One of {', '.join(f'`{choice}`' for choice in choices)}."
        default = str(setting["default"]).replace("\n", r"\n")
        lines[setting["name"]] = f"* `{setting['name']}` (`{default}`): {text}"
    return lines


def _shortened(settings: dict[str, str], before: dict[str, dict[str, str]]) -> list[str]:
    """The lines, with one for the settings that stand so in an earlier method, where those are many.

    >>> _shortened({"a": "* a", "b": "* b", "c": "* c"}, {"old": {"a": "* a", "b": "* b", "c": "* c?"}})
    ['* a', '* b', '* c']
    """
    for name, lines in before.items():
        same = [setting for setting, line in settings.items() if lines.get(setting) == line]
        if len(same) >= SAME:
            listed = ", ".join(f"`{setting}`" for setting in same)
            own = [line for setting, line in settings.items() if setting not in same]
            return [f"* {listed}: as in [`{name}`](#{name}).", *own]
    return list(settings.values())
