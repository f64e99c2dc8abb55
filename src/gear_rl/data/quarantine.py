"""Rows that cannot be used are set aside with the reason, counted and said, never silently dropped."""

import json
import logging
import os
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gear_rl.data.prompts import prompt_fault

log = logging.getLogger(__name__)


class Quarantine:
    """Sets rows aside: each with its reason in a file, all of them in one warning.

    >>> aside = Quarantine("d", "train", path=None)
    >>> aside.add(4, {"prompt": ""}, "prompt is empty"), aside.add(4, {"prompt": ""}, "prompt is empty")
    (True, False)
    """

    def __init__(self, name: str, split: str, path: Path | None) -> None:
        self.name, self.split, self.path = name, split, path
        self.reasons = Counter[str]()
        self.first: str | None = None
        """Where the first row that is left out stands."""
        self.lines: list[int] | None = None
        """The line of each row, where they come from a text file."""
        self._seen: set[str] = set()
        self._written: set[str] | None = None

    def add(self, index: int, row: Mapping[str, Any], reason: str, line: int | None = None) -> bool:
        """Set a row aside; False if it was already, as in the second epoch of a stream."""
        number = self.lines[index] if line is None and self.lines is not None else line
        entry = {"dataset": self.name, "split": self.split, "row": index, "reason": reason, "values": row}
        entry |= {} if number is None else {"line": number}
        self.first = self.first or (f"row {index}" if number is None else f"line {number}")
        text = json.dumps(entry, ensure_ascii=False, default=repr)
        text = text.encode("utf-8", "replace").decode("utf-8")
        if text in self._seen:
            return False
        self._seen.add(text)
        self.reasons[reason] += 1
        if self.path is not None and os.environ.get("RANK", "0") == "0":
            self._write(text, self.path)
        return True

    def _write(self, line: str, path: Path) -> None:
        """One process of a distributed run writes for all; a run that is resumed does not write a line twice."""
        if self._written is None:
            path.parent.mkdir(parents=True, exist_ok=True)
            text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
            self._written = set(text.split("\n"))
        if line not in self._written:
            with open(path, "a", encoding="utf-8") as file:
                file.write(line + "\n")

    def report(self, total: int | None = None) -> None:
        """One warning with the number of rows of each reason; nothing where all rows are used."""
        count = self.reasons.total()
        if count:
            why = ", ".join(f"{number} {reason}" for reason, number in self.reasons.most_common(5))
            why += f", ... {len(self.reasons) - 5} other reasons" if len(self.reasons) > 5 else ""
            of, where = f" of {total}" if total is not None else "", f"; see {self.path}" if self.path else ""
            log.warning(
                "dataset: %d%s rows of %s are left out (%s; the first at %s)%s",
                *(count, of, self.name, why, self.first, where),
            )


class Gate:
    """What lets the rows of a stream pass: an object with a state, called by ``IterableDataset.filter``.

    >>> gate = Gate(Quarantine("d", "train", path=None), keep=lambda prompt: None)
    >>> gate({"prompt": "2 + 2"}, 0), gate({"prompt": ""}, 1)
    (True, False)
    """

    def __init__(self, aside: Quarantine, keep: Callable[[Any], str | None]) -> None:
        self.aside, self.keep = aside, keep

    def __call__(self, row: Mapping[str, Any], index: int) -> bool:
        reason = prompt_fault(row.get("prompt")) or self.keep(row["prompt"])
        if reason is None:
            return True
        # A stream's end is not seen from here: said at the first bad row, and whenever there are ten times more.
        if reason and self.aside.add(index, row, reason):
            count = self.aside.reasons.total()
            if count == 10 ** (len(str(count)) - 1):
                self.aside.report()
        return False
