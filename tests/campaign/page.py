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
    if not _MARKS.search(page):
        raise ValueError(
            "the page has no <!-- campaign --> ... <!-- /campaign -->; put them where the table goes"
        )
    return _MARKS.sub(lambda match: match[1] + table(found) + match[2], page)


def table(found: dict[str, Any]) -> str:
    """One line for each part: what was done, how often, what came of it, and how many of them are faults."""
    lines = ["| done to it | times | outcome | faults |", "|---|---:|---|---:|"]
    for part, words in _PARTS.items():
        if part in found:
            row = found[part]
            outcomes = ", ".join(
                f"{what} {times:,}" for what, times in _summed(part, row["outcomes"]).items()
            )
            lines.append(f"| {words} | {row['n']:,} | {outcomes} | {len(row['faults'])} |")
    return "\n".join(lines) + "\n"


def _summed(part: str, outcomes: dict[str, int]) -> dict[str, int]:
    """What differs only in the kind of file is added up, and nothing of it is left out."""
    if part != "corruption":
        return outcomes
    sums = Counter[str]()
    for what, times in outcomes.items():
        sums[what.partition(": ")[2]] += times
    return dict(sums)
