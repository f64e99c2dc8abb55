"""The record file: one JSON line per completion, with its tokens and their credit.

Engines write it, the viewer and the laboratory read it. It contains the privileged context.
"""

# pyright: reportUnknownArgumentType=false, reportUnknownVariableType=false

import json
import logging
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, cast, get_origin

from pydantic import TypeAdapter, ValidationError

from gear_rl.files import replace_file

logger = logging.getLogger(__name__)

RECORDS = "records.jsonl"
"""The usual name of a run's record file, in the run's folder."""
FORMAT = 1
"""Version of the record format; a reader refuses a newer one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One completion and its credit; lists have one entry per completion token, padding left out.

    >>> record = Record(
    ...     step=1, group=0, method="gear", prompt="1+1", tokens=["2"], ids=[7], mask=[1], turn=[0],
    ...     segment=[0], reward=1.0, advantage=0.5, credit=[0.5], weight=[1 / 3],
    ... )
    >>> record.to_json()[98:]
    '"segment":[0],"reward":1.0,"advantage":0.5,"credit":[0.5],"weight":[0.333333],"signals":{},"fallback":null,"context":null,"teacher_prompt":null,"tools":{},"truncated":false,"format":1}'
    """

    step: int
    """Number of the step that trained on the completion first, from 1, as in the trainer's log."""
    group: int
    """Number of the prompt within the step; the completions of a group share it."""
    method: str
    """Name of the credit-assignment method."""
    prompt: str
    """The student's prompt, decoded."""
    tokens: list[str]
    """The text of each token."""
    ids: list[int]
    mask: list[int]
    """1 on tokens that were trained, 0 on tool output; a token that verl rejected has 1, and no credit."""
    turn: list[int]
    """Number of the turn; -1 on tokens that were not trained."""
    segment: list[int]
    """Number of the segment; -1 on tokens that were not trained."""
    reward: float | None
    advantage: float
    """The completion's advantage, as the trainer computed it."""
    credit: list[float]
    """The advantage of each token, as the loss saw it."""
    weight: list[float]
    """``credit / advantage``, or over the mean size of ``credit`` where the advantage is 0."""
    signals: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    """Signals of the forward passes, in nats; empty where no pass was run (zero advantage)."""
    fallback: str | None = None
    """Why the completion kept its GRPO advantage (``gear_rl.credit.plan.FALLBACKS``); else None."""
    context: str | None = None
    """Where the teacher's privileged context came from (a column, ``environment``, ``sibling``, ...)."""
    teacher_prompt: str | None = None
    """The teacher's prompt with the privileged context, decoded; None where it had no prompt of its own."""
    tools: dict[str, int] = field(default_factory=dict[str, int])
    """Number of tool calls (``calls``), and of failures by kind."""
    truncated: bool = False
    """True if the completion was cut off before it ended."""
    format: int = FORMAT

    def to_json(self) -> str:
        """One line of JSON; numbers to 6 significant digits, NaN and infinities as null."""
        short = json.loads(
            json.dumps({name: getattr(self, name) for name in _NAMES}),
            parse_float=lambda digits: float(f"{float(digits):.6g}"),
            parse_constant=lambda _: None,
        )
        return json.dumps(short, ensure_ascii=False, separators=(",", ":"))


_RECORD = TypeAdapter(Record)
_NAMES = [f.name for f in fields(Record)]
_FIELDS = {*_NAMES}
PER_TOKEN = [f.name for f in fields(Record) if get_origin(f.type) is list]
"""The fields that have a value for each token."""
_REQUIRED = _FIELDS - {"signals", "fallback", "context", "teacher_prompt", "tools", "truncated"}


def read_records(path: str | Path) -> Iterator[Record]:
    """Every record of the file, in order; ``ValueError`` names the file, the line and what is wrong with it.

    Null in place of a number is read as NaN. Fields that a later version of the same format added are ignored.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
    ...     print("{}", file=file, flush=True)
    ...     list(read_records(file.name))
    Traceback (most recent call last):
    ValueError: ...jsonl, line 1: not a credit record, it lacks advantage, credit, format, group, ids, ...
    """
    with open(path, "rb") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                try:
                    yield _record(line)
                except ValueError as error:
                    raise ValueError(f"{path}, line {number}: {error}") from None


def _record(line: bytes) -> Record:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON ({error}); delete the line") from None
    row = cast(dict[str, Any], row) if isinstance(row, dict) else {}
    if isinstance(row.get("format"), int) and row["format"] > FORMAT:
        raise ValueError(f"format {row['format']}, but this version reads {FORMAT}; upgrade gear-rl")
    missing = _REQUIRED - row.keys()
    if missing:
        raise ValueError(f"not a credit record, it lacks {', '.join(sorted(missing))}")
    known = {name: value for name, value in row.items() if name in _FIELDS}
    signals = known.get("signals", {})
    lists = {name: known[name] for name in PER_TOKEN}
    lists |= signals if isinstance(signals, dict) else {"signals": signals}
    for name, values in lists.items():
        if not isinstance(values, list):
            raise ValueError(f"not a credit record, {name} is {values!r:.40} and no list")
        if len(values) != len(known["tokens"]):
            raise ValueError(
                f"not a credit record, {name} has {len(values)} entries for {len(known['tokens'])} tokens"
            )
        values[:] = [math.nan if value is None else value for value in values]
    if known["advantage"] is None:
        known["advantage"] = math.nan
    try:
        return _RECORD.validate_python(known)
    except ValidationError as error:
        fault = error.errors()[0]
        raise ValueError(f"not a credit record, {'.'.join(map(str, fault['loc']))}: {fault['msg']}") from None


class RecordWriter:
    """Keeps the newest records of a run in one file of at most ``max_bytes``, replaced as a whole at each write.

    At ``resume_step`` 0 the file is new; else it keeps the records up to that step. A file that cannot be read
    or written (a full disk, a damaged line) ends the recording with one warning, not the training.

    >>> import tempfile
    >>> lists = dict.fromkeys(("tokens", "ids", "mask", "turn", "segment", "credit", "weight"), [])
    >>> record = Record(step=3, group=0, method="gear", prompt="", reward=1.0, advantage=0.5, **lists)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     RecordWriter(f"{folder}/run.jsonl").write([record])
    ...     next(read_records(f"{folder}/run.jsonl")) == record
    True
    """

    def __init__(self, path: str | Path, max_bytes: int = 32 * 1024 * 1024, resume_step: int = 0) -> None:
        self.path, self.max_bytes = Path(path), max_bytes
        self._lines: list[bytes] = []
        self._stopped = False
        if resume_step > 0 and not self.path.exists():
            logger.warning("record_file: %s is missing; records begin at step %d", self.path, resume_step + 1)
        elif resume_step > 0:
            try:
                self._lines = [_line(r) for r in read_records(self.path) if r.step <= resume_step]
            except (OSError, ValueError) as error:
                self._stop(error)

    def write(self, records: Iterable[Record]) -> None:
        """Add records and drop the oldest beyond the bound, but never the newest."""
        if self._stopped:
            return
        self._lines += [_line(record) for record in records]
        size = sum(map(len, self._lines))
        drop = 0
        while size > self.max_bytes and drop < len(self._lines) - 1:
            size -= len(self._lines[drop])
            drop += 1
        del self._lines[:drop]
        try:
            replace_file(self.path, b"".join(self._lines))
        except OSError as error:
            self._stop(error)

    def _stop(self, error: Exception) -> None:
        logger.warning(
            "record_file: %s: %s; nothing more is recorded, the training goes on", self.path, error
        )
        self._stopped, self._lines = True, []


def _line(record: Record) -> bytes:
    # Half of a character, a lone surrogate, becomes JSON's escape.
    return record.to_json().encode("utf-8", "backslashreplace") + b"\n"
