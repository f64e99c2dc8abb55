"""The tables of ``docs/methods.md``, from the methods' settings and the costs that were measured."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gear_rl.errors import InputError
from gear_rl.methods import METHODS
from gear_rl.runs.config import needs_of, settings_of
from gear_rl.traits import distillation_of, engine_settings_of, is_additive

_Catalogue = Mapping[str, Any]


def methods_page(page: str, costs: dict[str, Any] | None, methods: _Catalogue = METHODS) -> str:
    """The page with its tables made anew; the prose between them is kept.

    A table stands between ``<!-- made: NAME -->`` and ``<!-- end -->``, NAME a method or ``costs``. ``costs`` is
    what ``python -m benchmarks methods`` wrote; None leaves the column empty. Raises ``InputError`` for a mark
    that names no method.

    >>> methods_page("<!-- made: costs -->\\n<!-- end -->", None, {}).splitlines()[1]
    "| method | needs | step / GRPO's | source |"
    """
    marks = re.findall(r"<!-- made: (\w+) -->", page)
    gone = [name for name in marks if name not in ("costs", *methods)]
    if gone:
        raise InputError(f"docs/methods.md: there is no method {', '.join(gone)}; take its section out")
    shown = {name: cls for name, cls in methods.items() if name in marks}
    made = {"costs": _overview(costs, shown)} | {name: _facts(cls) for name, cls in shown.items()}
    return re.sub(
        r"<!-- made: (\w+) -->\n.*?<!-- end -->",
        lambda mark: f"<!-- made: {mark[1]} -->\n{made[mark[1]]}<!-- end -->",
        page,
        flags=re.DOTALL,
    )


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


def _facts(cls: Any) -> str:
    method = cls()
    lines = [f"Source: {cls.source}. Needs: {needs_of(method)}."]
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
