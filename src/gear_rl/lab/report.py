"""The findings of a comparison, as one JSON document, one HTML page and PNG files, all from the same numbers.

The page needs no script, no font and no network. docs/laboratory.md describes the document.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from gear_rl.files import replace_file
from gear_rl.lab.plots import drawings, inline_svg, write_png

FORMAT = 1
"""Version of the document; another one is refused."""


def findings(
    *,
    title: str,
    command: str,
    comparisons: Iterable[Mapping[str, Any]] = (),
    localisations: Iterable[Mapping[str, Any]] = (),
    settings: Mapping[str, object] | None = None,
    versions: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """The document that `save_report` and `save_plots` draw and the JSON file holds.

    ``ValueError`` for NaN and infinities, which JSON has not.

    >>> sorted(findings(title="Nothing", command="gear compare"))
    ['command', 'comparisons', 'format', 'localisations', 'note', 'settings', 'title', 'versions']
    """
    document = {
        "format": FORMAT,
        "title": title,
        "note": "",
        "command": command,
        "settings": dict(settings or {}),
        "versions": dict(versions or {}),
        "comparisons": list(comparisons),
        "localisations": list(localisations),
    }
    return json.loads(json.dumps(document, allow_nan=False))


def save_report(document: Mapping[str, Any], out: str | Path) -> None:
    """The findings as one HTML file, the verdicts first; ``ValueError`` for a document of another format.

    >>> save_report({"format": 0}, "report.html")
    Traceback (most recent call last):
    ValueError: format: 0, but this version reads 1; make the findings again
    """
    _check(document)
    pages = Environment(
        loader=PackageLoader("gear_rl.lab"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    filters: tuple[Any, ...] = (_number, _signed, _span, _p, _percent, _plural)
    pages.filters.update({one.__name__.removeprefix("_"): one for one in filters})
    drawn = [
        {"section": one.section, "label": one.label, "svg": Markup(inline_svg(one, f"f{n}"))}
        for n, one in enumerate(drawings(document))
    ]
    page = pages.get_template("report.html.j2").render(document=document, figures=drawn)
    replace_file(Path(out), page.encode())


def save_plots(document: Mapping[str, Any], folder: str | Path) -> list[Path]:
    """The paths of the report's figures as PNG files; ``ValueError`` for a document of another format.

    >>> save_plots(findings(title="Nothing", command="gear compare"), "plots")
    []
    """
    _check(document)
    paths: list[Path] = []
    for figure in drawings(document):
        paths.append(Path(folder) / f"{figure.stem}.png")
        write_png(figure, paths[-1])
    return paths


def _check(document: Mapping[str, Any]) -> None:
    version = document.get("format")
    if version != FORMAT:
        raise ValueError(f"format: {version!r}, but this version reads {FORMAT}; make the findings again")


def _number(value: float | None, digits: int = 3) -> str:
    """A dash for None, a true minus, and no minus before a 0.

    >>> _number(0.12345), _number(-0.0001)
    ('0.123', '0.000')
    """
    if value is None:
        return "\N{EN DASH}"
    text = f"{value:.{digits}f}"
    return text.removeprefix("-") if float(text) == 0 else text.replace("-", "\N{MINUS SIGN}")


def _signed(value: float | None) -> str:
    text = _number(value)
    return f"+{text}" if value is not None and value > 0 and float(text) > 0 else text


def _span(interval: Sequence[float] | None, digits: int = 3) -> str:
    return _number(None) if interval is None else " to ".join(_number(end, digits) for end in interval)


def _p(value: float | None) -> str:
    return "< 0.001" if value is not None and value < 0.001 else _number(value)


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def _plural(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
