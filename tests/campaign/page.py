"""The campaign's table on ``docs/checkpoints.md``, made from ``results/campaign.json``."""

from typing import Any

_PARTS = {
    "writers": "A second process that wants to write the folder",
    "kills": "`kill -9` after the first checkpoint: half at random times, half inside the write of another",
    "early": "`kill -9` before the first checkpoint",
    "canary": "Rollouts beside a privileged context of their own",
}


def renewed(page: str, found: dict[str, Any]) -> str:
    """The page with the table between its marks made of these numbers: one line for each part."""
    lines = ["| done to it | times | outcome | faults |", "|---|---:|---|---:|"]
    for part, words in _PARTS.items():
        if part in found:
            row = found[part]
            outcomes = ", ".join(f"{what} {times:,}" for what, times in row["outcomes"].items())
            lines.append(f"| {words} | {row['n']:,} | {outcomes} | {len(row['faults'])} |")
    before, mark, rest = page.partition("<!-- campaign -->\n")
    return before + mark + "\n".join(lines) + "\n" + rest[rest.index("<!-- /campaign -->") :]
