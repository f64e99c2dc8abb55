"""The campaign's table on ``docs/checkpoints.md``, made from ``docs/results/campaign.json``."""

import re
from collections import Counter
from typing import Any

_MARKS = re.compile(r"(<!-- campaign -->\n).*?(<!-- /campaign -->)", re.DOTALL)
_PARTS = {
    "writers": "A second process that wants to write the folder",
    "corruption": "Every file of a checkpoint: deleted, cut, emptied, one bit flipped",
    "kills": "`kill -9` after the first checkpoint: half at random times, half inside the write of another",
    "early": "`kill -9` before the first checkpoint",
    "canary": "Rollouts beside a privileged context of their own",
}


def renewed(page: str, found: dict[str, Any]) -> str:
    """The page with the table between its marks made of these numbers; ``ValueError`` without marks."""
    made, count = _MARKS.subn(lambda match: match[1] + table(found) + match[2], page)
    if not count:
        raise ValueError(
            "the page has no <!-- campaign --> ... <!-- /campaign -->; add them around the table"
        )
    return made


def table(found: dict[str, Any]) -> str:
    """One line for each part: what was done, how often, the outcomes, and the number of faults."""
    lines = ["| done to it | times | outcome | faults |", "|---|---:|---|---:|"]
    for part, words in _PARTS.items():
        if part in found:
            row, sums = found[part], Counter[str]()
            for what, times in row["outcomes"].items():
                sums[what.rpartition(": ")[2]] += times  # of every damage
            outcomes = ", ".join(f"{what} {times:,}" for what, times in sums.items())
            lines.append(f"| {words} | {row['n']:,} | {outcomes} | {len(row['faults'])} |")
    return "\n".join(lines) + "\n"
