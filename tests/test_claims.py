"""What is said of GEAR's paper, whose equations and settings nobody here has seen."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from gear_rl.methods import Gear

ROOT = Path(__file__).parents[1]
CLAIM = re.compile(
    r"\b(?:papers?|authors?|as published|the published|published with|to the letter|pseudo-code"
    r"|reference implementation)\b|gear:paper",
    re.IGNORECASE,
)
ALLOWED = (
    "The paper's, and ours",
    "a poor result of it says nothing about the paper",
    "The reconstruction's rows say nothing about the paper",
    "the paper reports gains with Qwen3 4B and 8B, which we have not repeated",
    "hether the paper's weight is unsigned, we do not know",
    "This project is independent of its authors.",
    "We have read the paper's abstract and figure captions. We have not seen its equations, settings, "
    "pseudo-code, tables or code.",
    "follow the paper's abstract and captions, which are guesses and which are ours",
    "is our doing, not the paper's",
    "a variant of ours, not the paper's method",
    "the papers around GEAR share (RLSD, SERL, SDPG); we have not seen GEAR's",
    "ours; the paper's is unknown",
    # of other methods
    "The papers' own rules (`step_scores:use=",
    "where paper and released code disagree",
    "Our reading where the paper is silent",  # SHEAR
)
"""All that may be said with such words outside the files and sections of other methods."""


def test_the_paper_is_spoken_of_in_allowed_phrases_alone():
    pages = [ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")]
    code = [
        *(ROOT / "src").rglob("*.py"),
        *(ROOT / "examples").rglob("*.*"),
        *(ROOT / "benchmarks").glob("*.py"),
    ]
    said: dict[str, list[str]] = {}
    for path in [*pages, *code]:
        if path.parent.name == "methods" and path.name != "gear.py":
            continue
        text = path.read_text(encoding="utf-8")
        if path.name == "methods.md":
            text = re.sub(r"^## (?!gear$)\w+$.*?(?=^## |\Z)", "", text, flags=re.MULTILINE | re.DOTALL)
        text = " ".join(re.sub(r"^ *#:? ", "", text, flags=re.MULTILINE).split())
        for phrase in ALLOWED:
            text = text.replace(phrase, "")
        around = [text[max(0, hit.start() - 50) : hit.end() + 30] for hit in CLAIM.finditer(text)]
        if around:
            said[str(path.relative_to(ROOT))] = around
    assert not said, f"say it as in ALLOWED, or add the phrase there: {said}"


def test_the_table_of_sources_has_every_setting_of_gear_as_it_is():
    page = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| `([^`]*)` \| `([^`]*)` \| (\w+).*\|$", page, re.MULTILINE)
    plain = Gear(**Gear.presets["plain"])
    shown = {name: (theirs, ours) for name, theirs, ours, _ in rows}
    engine = {name: (str(value),) * 2 for name, value in Gear.engine_settings.items()}
    assert shown == engine | {
        field.name: (str(getattr(plain, field.name)), str(getattr(Gear(), field.name)))
        for field in fields(Gear)
    }
    assert {source for *_, source in rows} == {"abstract", "caption", "guess", "ours"}
    for name, theirs, ours, source in rows:
        assert theirs == ours or source in ("guess", "ours"), name


NAMED = (
    "variant of GEAR",
    "reconstruction of GEAR",
    "Our changes to GEAR",
    "Which GEAR?",
    "of GEAR from its abstract and figure captions",
    "[our variant](#which-gear) of GEAR",
    "[our variant](results/README.md#our-changes-to-gear) of GEAR",
    "GEAR is [our variant]",
)
"""What pages with results may call GEAR; a result is that of `gear` or `gear:plain`."""


@pytest.mark.parametrize(
    "page", ["results/README", "which-method", "language-model", "laboratory", "benchmarks"]
)
def test_a_result_of_ours_is_not_called_gears(page):
    text = " ".join((ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8").split())
    for phrase in NAMED:
        text = text.replace(phrase, "")
    named = re.finditer(r"(?<![\w$])GEAR(?!\w)", text)
    assert [text[max(0, hit.start() - 50) : hit.end() + 30] for hit in named] == []
