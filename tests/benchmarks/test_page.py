"""The tables of README and the pages are what the runs in results/ say."""

import pytest

from benchmarks.page import PAGES, ROOT, renewed
from benchmarks.tables import TABLES


@pytest.mark.parametrize("page", PAGES)
def test_a_page_has_the_tables_that_its_runs_make(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    assert renewed(text) == text, "run `make pages`"


def test_every_table_stands_on_a_page():
    texts = [(ROOT / page).read_text(encoding="utf-8") for page in PAGES]
    assert [name for name in TABLES if not any(f"<!-- {name} -->" in text for text in texts)] == []


def test_the_table_of_the_readme_by_hand():
    """On `codebook` hard `gear` is better at both rates, its placebo is not; on `errands` neither is."""
    lines = TABLES["tasks"].markdown().splitlines()
    assert lines[2] == "| 24 codes to look up, graded (0.84M) | **yes** | **yes** | no evidence | **yes** |"
    assert lines[3] == "| six tool calls, graded (0.84M) | **yes** | no evidence | no evidence | not run |"
    [sft] = [line for line in TABLES["catalogue"].markdown().splitlines() if "| `sft`" in line]
    assert "| 0.991 | **+0.174 to +0.348** | **+0.250 to +0.793** |" in sft
