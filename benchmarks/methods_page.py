"""The page ``docs/methods.md``: docstrings and settings of the methods, and the costs that were measured."""

import inspect
import re
from typing import Any

from gear_rl.methods import METHODS
from gear_rl.runs.config import settings_of
from gear_rl.signals.signal import names_of
from gear_rl.traits import distillation_of, engine_settings_of


def methods_page(page: str, costs: dict[str, Any]) -> str:
    """The page with the text between its marks made anew; all other text is kept.

    The marks are ``<!-- made: NAME -->`` and ``<!-- end -->``, NAME a method or ``costs``. ``costs`` is the
    result of ``python -m benchmarks methods``. ``KeyError`` for a mark that names no method.
    """
    marks = re.findall(r"<!-- made: (\w+) -->", page)
    shown = {name: METHODS[name] for name in marks if name != "costs"}
    made = {"costs": _overview(costs, shown)} | {name: _section(cls) for name, cls in shown.items()}
    return re.sub(
        r"<!-- made: (\w+) -->\n.*?<!-- end -->",
        lambda mark: f"<!-- made: {mark[1]} -->\n{made[mark[1]]}<!-- end -->",
        page,
        flags=re.DOTALL,
    )


def _overview(costs: dict[str, Any], methods: dict[str, Any]) -> str:
    lines = ["| method | needs | step / GRPO's | source |", "|---|---|---|---|"]
    for name, cls in methods.items():
        row = costs["methods"].get(name)
        cost = "" if row is None else f"{row['ratio']:.2f} ({row['least']:.2f} to {row['most']:.2f})"
        needs = ", ".join(f"`{signal}`" for signal in names_of(cls().needs))
        teacher = "a teacher in the loss" if distillation_of(cls()) is not None else ""
        needs = "; ".join(filter(None, (needs, teacher))) or "nothing"
        lines.append(f"| [`{name}`](#{name}) | {needs} | {cost} | {cls.source} |")
    lines += [
        "",
        "*Step / GRPO's*: CPU seconds of a training step over those of `uniform`, median of "
        f"{costs['repeats']} repeats (least to most), on a CPU with {costs['threads']} thread, "
        f"the arena task {costs['task']}/{costs['tier']}, {costs['rollouts_per_step']} rollouts a step and "
        "a model of 0.84M parameters; larger models and longer completions have other ratios. Made by",
        "",
        "```",
        f"python -m benchmarks methods --steps {costs['steps']} --repeats {costs['repeats']} "
        f"--rollouts {costs['rollouts_per_step']} --out src/gear_rl/cli/method_costs.json",
        "make pages",
        "```",
        "",
        f"with torch {costs['versions'].get('torch')}, trl {costs['versions'].get('trl')}, transformers "
        f"{costs['versions'].get('transformers')}.",
    ]
    return "\n".join(lines) + "\n"


def _section(cls: Any) -> str:
    """A method's docstring without its examples, what it sets in the engine, and its settings."""
    prose = re.sub(r"^>>> .*?(^$|\Z)", "", inspect.getdoc(cls) or "", flags=re.MULTILINE | re.DOTALL)
    lines = [prose.strip().replace("``", "`")]
    published = engine_settings_of(cls())
    if published:
        engine = ", ".join(f"`{key}: {value}`" for key, value in published.items())
        lines += ["", f"Engine settings, applied unless you set them: {engine}."]
    lines += [""] if settings_of(cls) else []
    for setting in settings_of(cls):
        text: str = setting["help"] or ""
        choices: list[str] = setting["choices"] or []
        if any(choice not in text for choice in choices):
            text += f" One of {', '.join(f'`{choice}`' for choice in choices)}."
        default = str(setting["default"]).replace("\n", r"\n")
        lines.append(f"* `{setting['name']}` (`{default}`): {text}")
    return "\n".join(lines) + "\n"
