"""The tables of ``docs/benchmarks.md``, made from the JSON files; the prose is written by hand."""

import json
import re
from pathlib import Path

from benchmarks.signals import signals_cells
from benchmarks.step import step_cells

TABLES = {"signals": signals_cells, "step": step_cells}
"""The table of each mark; its numbers are in ``bench_NAME.json``."""


def renewed(page: str, results: Path) -> str:
    """The page with the text between ``<!-- NAME -->`` and ``<!-- /NAME -->`` made from the folder of results.

    >>> renewed("A page without marks.", Path("results"))
    'A page without marks.'
    """

    def made(mark: re.Match[str]) -> str:
        result = json.loads((results / f"bench_{mark[1]}.json").read_text(encoding="utf-8"))
        return f"<!-- {mark[1]} -->\n{TABLES[mark[1]](result).markdown(result)}<!-- /{mark[1]} -->"

    return re.sub(rf"<!-- ({'|'.join(TABLES)}) -->\n.*?<!-- /\1 -->", made, page, flags=re.DOTALL)
