"""kill -9 at random times and inside writes, then resume: are the last weights those of a run left alone?"""

from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from shutil import rmtree
from socket import gethostname
from typing import Any

from campaign.runs import counted, dying_at, forked, rng, torn_lines, train
from engines import tiny
from gear_rl.engines.checkpoints import UNFINISHED

_NO_CHECKPOINT = "holds no whole checkpoint"


def kills(scratch: Path, n: int, seed: int, say: Callable[[int], None]) -> dict[str, Any]:
    """``n`` runs that are killed, every second one inside a write; ``say`` gets how many are done."""
    model = tiny.save(scratch / "model")
    whole = scratch / "whole"
    changes, seconds = counted(whole, partial(train, model, whole, False), scratch / "whole.log")
    expected = whole.with_suffix(".weights").read_text()
    draws, outcomes, faults, half_written = rng(seed, "kills"), Counter[str](), list[str](), 0
    for i in range(n):
        folder, log = scratch / f"run{i}", scratch / f"run{i}.log"
        work = partial(train, model, folder, False)
        inside = i % 2 == 0
        number = draws.randint(1, changes)
        after = draws.uniform(0.15, 0.95) * seconds
        ended = forked(dying_at(folder, number, work), log) if inside else forked(work, log, kill_after=after)
        where = f"before change {number}" if inside else f"after {after:.2f} s"
        half_written += any((folder / UNFINISHED).glob("*/*"))
        outcome = _resumed(model, folder, log, expected, killed=ended.code == -9)
        outcomes[outcome] += 1
        if outcome not in _GOOD:
            faults.append(f"kill {i} {where}: {outcome}: {log.read_text(errors='replace')[-2000:]}")
        rmtree(folder, ignore_errors=True)
        say(i + 1)
    return {
        "n": n,
        "changes_of_files": changes,
        "half_written_checkpoints": half_written,
        "outcomes": dict(sorted(outcomes.items())),
        "faults": faults,
    }


_GOOD = ("resumed, bit-identical", "no checkpoint yet, begun anew, bit-identical", "ended before the kill")


def _resumed(model: str, folder: Path, log: Path, expected: str, *, killed: bool) -> str:
    """What became of a run that was killed, in words."""
    weights = folder.with_suffix(".weights")
    if not killed:
        right = weights.exists() and weights.read_text() == expected
        return "ended before the kill" if right else "failed by itself"
    weights.unlink(missing_ok=True)
    resumed = forked(partial(train, model, folder, True), log)
    words = "resumed, bit-identical"
    if resumed.code and _NO_CHECKPOINT in resumed.said:
        rmtree(folder, ignore_errors=True)
        resumed = forked(partial(train, model, folder, False), log)
        words = "no checkpoint yet, begun anew, bit-identical"
    if resumed.code:
        return "the resume failed"
    if torn_lines(folder / "records.jsonl"):
        return "a torn line of records"
    return words if weights.read_text() == expected else "other weights"


def writers(scratch: Path) -> dict[str, Any]:
    """A second process that wants to write the folder of a run under way."""
    model = tiny.save(scratch / "model")
    folder = scratch / "shared"
    refused: list[str] = []

    def first() -> None:
        import gear_rl.engines.trl.trainer as engine

        before = engine.GEARTrainer._prepare_inputs

        def interrupted(trainer: Any, batch: Any) -> Any:
            if not refused:
                second = forked(partial(train, model, folder, False), scratch / "second.log")
                refused.append(second.said)
                (scratch / "second.txt").write_text(f"{second.code} {second.said.strip().splitlines()[-1]}")
            return before(trainer, batch)

        engine.GEARTrainer._prepare_inputs = interrupted  # type: ignore[method-assign]
        train(model, folder, False)

    ended = forked(first, scratch / "first.log")
    code, _, last = (scratch / "second.txt").read_text().partition(" ")
    said = last.split(": ", 1)[-1].replace(str(scratch), "FOLDER").replace(gethostname(), "HOST")
    good = ended.code == 0 and code != "0" and said.startswith("output_dir: process")
    outcome = "the second is refused, the first ends well" if good else f"{ended.code}, {code}: {said}"
    return {"n": 1, "said": said, "outcomes": {outcome: 1}, "faults": [] if good else [outcome]}
