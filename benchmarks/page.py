"""The page ``docs/benchmarks.md``: its tables are those of the JSON files; the prose is written by hand."""

import json
import re
from pathlib import Path

from benchmarks.tables import markdown_of

FILES = {
    "signals": ("signals", "bench_signals.json"),
    "signals_bf16": ("signals", "bench_signals_bf16.json"),
    "memory": ("memory", "bench_memory.json"),
    "segments": ("segments", "bench_segments.json"),
    "step": ("step", "bench_step.json"),
}
"""Of each mark the kind of its table, and the file that holds the numbers."""
NOT_YET = "Not measured yet."


def renewed(page: str, results: Path) -> str:
    """The page with the text between ``<!-- NAME -->`` and ``<!-- /NAME -->`` made from the files of the results.

    A file that is not there leaves "not measured yet". Raises ``ValueError`` for a page without one of the marks,
    and for a file that is no result.
    """
    for name, (kind, file) in FILES.items():
        marks = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
        if not marks.search(page):
            raise ValueError(
                f"the page has no <!-- {name} --> ... <!-- /{name} -->; put them where the table goes"
            )
        path = results / file
        text = f"{NOT_YET}\n"
        if path.exists():
            try:
                text = markdown_of(kind, json.loads(path.read_text(encoding="utf-8")))
            except (ValueError, KeyError, TypeError, AttributeError):
                raise ValueError(f"{path} is no result of the bench {kind}; make it anew") from None
        page = marks.sub(lambda match, text=text: f"{match[1]}{text}{match[2]}", page)
    return page
