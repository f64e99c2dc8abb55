"""The findings of a comparison: their file, and one HTML page with the figures.

The page needs no script, no font and no network. docs/laboratory.md describes the file.
"""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from pydantic import ValidationError

from gear_rl.files import replace_file
from gear_rl.lab.cells import RUNS, Cell, Frozen, Outcome, plain_fields
from gear_rl.lab.plots import drawings, inline_svg
from gear_rl.lab.verdict import Comparison, Verdict, compare


class _About(Frozen):
    """What neither runs nor verdicts say."""

    title: str
    note: str = ""
    command: str
    settings: dict[str, Any]
    versions: dict[str, str]


class Findings(_About):
    """What a page shows."""

    comparison: Comparison


class _Head(_About):
    """The first line of a file of runs."""

    baseline: str
    ceiling: str | None = None
    outcome: Outcome = "accuracy"


def write_runs(findings: Findings, path: Path) -> None:
    """Write a comparison: a line that says what it is, and a line for each run."""
    c, about = findings.comparison, {name: getattr(findings, name) for name in _About.model_fields}
    lines = [_Head(**about, baseline=c.baseline, ceiling=c.ceiling, outcome=c.outcome), *c.cells]
    text = "".join(json.dumps(plain_fields(line), separators=(",", ":")) + "\n" for line in lines)
    replace_file(path, text.encode())


def read_runs(path: Path) -> Findings:
    """A comparison from its file, the verdicts made anew; ``ValueError`` for a line that is none of a run.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "runs.jsonl"
    >>> run = Cell(task="chain", tier="easy", method="uniform", seed=0, steps=9, n_eval=8, error="killed")
    >>> about = {"title": "Mine", "command": "", "settings": {}, "versions": {}}
    >>> write_runs(Findings(**about, comparison=compare([run])), file)
    >>> read_runs(file).comparison.failed
    (('uniform', 0, 'killed'),)
    """
    read = list[Any]()
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            if line.strip():
                read.append((Cell if read else _Head).model_validate_json(line))
        except ValidationError as error:
            fault = error.errors()[0]
            raise ValueError(f"line {number}: {'.'.join(map(str, fault['loc']))}: {fault['msg']}") from None
    if len(read) < 2:
        raise ValueError("it holds no run")
    head, *cells = read
    return Findings(
        **{name: getattr(head, name) for name in _About.model_fields},
        comparison=compare(cells, baseline=head.baseline, ceiling=head.ceiling, outcome=head.outcome),
    )


def save(findings: Findings, folder: Path) -> None:
    """Write the runs and the page of a comparison, each in one step."""
    write_runs(findings, folder / RUNS)
    save_report(findings, folder / "report.html")


def save_report(findings: Findings, out: Path) -> None:
    """The findings as one HTML file, the verdicts first."""
    pages = Environment(
        loader=PackageLoader("gear_rl.lab"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    filters: tuple[Any, ...] = (_number, _signed_number, _span, _percent, _plural, _by_mean)
    pages.filters.update({one.__name__.removeprefix("_"): one for one in filters})
    drawn = [
        {"label": one.label, "svg": Markup(inline_svg(one, f"f{n}"))}
        for n, one in enumerate(drawings(findings.comparison))
    ]
    page = pages.get_template("report.html.j2").render(findings=findings, figures=drawn)
    replace_file(out, page.encode())


def _by_mean(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """The best mean first, runs without one last; equal ones in their order."""
    return sorted(
        verdicts, key=lambda verdict: -math.inf if verdict.mean is None else verdict.mean, reverse=True
    )


def _number(value: float | None, digits: int = 3) -> str:
    """A dash for None, a true minus, and no minus before a 0.

    >>> _number(0.12345), _number(-0.0001)
    ('0.123', '0.000')
    """
    if value is None:
        return "\N{EN DASH}"
    text = f"{value:.{digits}f}"
    return text.removeprefix("-") if float(text) == 0 else text.replace("-", "\N{MINUS SIGN}")


def _signed_number(value: float | None) -> str:
    text = _number(value)
    return f"+{text}" if value is not None and value > 0 and float(text) > 0 else text


def _span(interval: Sequence[float] | None, digits: int = 3) -> str:
    return _number(None) if interval is None else " to ".join(_number(end, digits) for end in interval)


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def _plural(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
