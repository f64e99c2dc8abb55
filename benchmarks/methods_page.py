"""The page ``docs/methods.md``, from the docstrings of the methods and the costs that were measured."""

import inspect
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gear_rl.errors import InputError
from gear_rl.methods import METHODS
from gear_rl.runs.config import needs_of, settings_of
from gear_rl.traits import distillation_of, engine_settings_of, is_additive

_HEAD = """# Methods

Every credit-assignment method of the package. Made from the docstrings by `make pages`; do not edit by hand.

A method gets the completion's advantage `A` from the trainer and spreads it over the tokens: `A_t`. *Needs* are
the signals that are computed for it, and no others are; [types.py](../src/gear_rl/types.py) says what each is.
Settings of the method are given as `--credit.NAME VALUE` or in Python; those of the engine are in `GEARConfig`.
"""


_Catalogue = Mapping[str, Any]


def methods_page(costs: dict[str, Any] | None, methods: _Catalogue = METHODS) -> str:
    """The page as Markdown, with one section for each of the methods.

    ``costs`` is what ``python -m benchmarks methods`` wrote: None leaves the column empty, and so does a method
    that was not there yet when costs were measured.

    >>> methods_page(None).count("\\n## ") == len(METHODS)
    True
    """
    parts = [_HEAD, _overview(costs, methods), *(_section(name, cls) for name, cls in methods.items())]
    return "\n".join(parts)


def _overview(costs: dict[str, Any] | None, methods: _Catalogue) -> str:
    lines = ["| method | needs | step / GRPO's | source |", "|---|---|---|---|"]
    for name, cls in methods.items():
        row = None if costs is None else costs["methods"].get(name)
        cost = "" if row is None else f"{row['ratio']:.2f} ({row['least']:.2f} to {row['most']:.2f})"
        lines.append(f"| [`{name}`](#{name}) | {needs_of(cls())} | {cost} | {cls.source} |")
    if costs is not None:
        lines += [
            "",
            "*Step / GRPO's*: seconds of a whole training step over those of `uniform`, median of "
            f"{costs['repeats']} repeats (least to most), in one run on a CPU with {costs['threads']} thread on "
            f"the arena task {costs['task']}/{costs['tier']}, {costs['rollouts_per_step']} rollouts a step of a "
            "model with 0.84M parameters. With a larger model or longer completions generation takes another "
            "share of a step, and so do these. Made by",
            "",
            "```",
            f"python -m benchmarks methods --steps {costs['steps']} --repeats {costs['repeats']} "
            f"--rollouts {costs['rollouts_per_step']} --out docs/results/method_costs.json",
            "make pages",
            "```",
            "",
            f"with torch {costs['versions'].get('torch')}, trl {costs['versions'].get('trl')}, transformers "
            f"{costs['versions'].get('transformers')}.",
        ]
    return "\n".join(lines) + "\n"


def _section(name: str, cls: Any) -> str:
    method = cls()
    lines = [f"## {name}", "", _prose(cls), "", f"Source: {cls.source}. Needs: {needs_of(method)}."]
    if distillation_of(method) is not None:
        lines[-1] += " Adds a term to the loss."
    elif is_additive(method):
        lines[-1] += " Additive: a token's advantage may have another sign than the completion's."
    published = engine_settings_of(method)
    if published:
        engine = ", ".join(f"`{key}: {value}`" for key, value in published.items())
        lines.append(f"Its own settings of the engine, applied unless you set them: {engine}.")
    settings = settings_of(cls)
    if settings:
        lines += ["", "| setting | default | meaning |", "|---|---|---|"]
        for setting in settings:
            choices = (
                f" One of {', '.join(f'`{c}`' for c in setting['choices'])}." if setting["choices"] else ""
            )
            text = ((setting["help"] or "") + choices).replace("|", "\\|")
            lines.append(f"| `{setting['name']}` | `{setting['default']}` | {text} |")
    return "\n".join(lines) + "\n"


def _prose(cls: Any) -> str:
    """The docstring without its executed example, double back-quotes as single ones."""
    text = (inspect.getdoc(cls) or "").split("\n>>> ")[0].rstrip()
    return re.sub(r"``(.+?)``", r"`\1`", text, flags=re.DOTALL)


def read_costs(file: Path) -> dict[str, Any]:
    """What ``python -m benchmarks methods --out`` wrote; ``InputError`` for another file.

    >>> read_costs(Path("missing.json"))
    Traceback (most recent call last):
    gear_rl.errors.InputError: missing.json is no result of `python -m benchmarks methods --out FILE`; ...
    """
    try:
        costs = json.loads(file.read_text(encoding="utf-8"))
        assert "ratio" in costs["methods"]["uniform"]
    except (OSError, ValueError, KeyError, TypeError, AssertionError):
        raise InputError(
            f"{file} is no result of `python -m benchmarks methods --out FILE`; make it first"
        ) from None
    return costs
