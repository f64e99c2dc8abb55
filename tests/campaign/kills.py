"""kill -9 at random times and inside writes, then resume: are the last weights those of a run left alone?"""

import json
from collections import Counter
from functools import partial
from pathlib import Path
from random import Random
from shutil import rmtree
from socket import gethostname
from typing import Any

import gear_rl.engines.trl.trainer as engine
from campaign.runs import FIRST, course, dying_at, forked, train
from engines import tiny
from gear_rl.engines.folder import UNFINISHED

RESUMED = "resumed from the newest checkpoint, bit-identical"
ANEW = "no checkpoint to resume from, said; begun anew, bit-identical"


def kills(scratch: Path, n: int, seed: int, early: bool = False) -> dict[str, Any]:
    """``n`` runs killed after their first checkpoint, half of them inside the write of another, or before it.

    A run that ends before its kill is not counted but killed once more.
    """
    model, whole = tiny.save(scratch / "model"), scratch / "whole"
    first, writes, seconds = course(whole, partial(train, model, whole, False), scratch / "whole.log")
    expected = whole.with_suffix(".weights").read_text()
    draws, outcomes, faults = Random(f"{seed} kills {early}"), Counter[str](), list[str]()
    half_written = 0
    while (done := outcomes.total()) < n:
        folder, log = scratch / f"run{done}", scratch / f"run{done}.log"
        work = partial(train, model, folder, False)
        if early or done % 2 == 0:
            number = draws.randint(1, first) if early else draws.choice(writes)
            code, _ = forked(dying_at(folder, number, work), log)
        else:
            code, _ = forked(work, log, draws.uniform(0, seconds), since=folder / FIRST)
        if code != 0:
            half_written += any((folder / UNFINISHED).glob("*/*"))
            outcome = f"ended with code {code}"
            if code == -9:
                outcome = (_begun_anew if early else _resumed)(model, folder, log, expected)
            outcomes[outcome] += 1
            if outcome not in (RESUMED, ANEW):
                faults.append(f"kill {done}: {outcome}: {log.read_text(errors='replace')[-2000:]}")
        rmtree(folder, ignore_errors=True)
    found = {"n": n, "changes_inside_writes": len(writes), "half_written_checkpoints": half_written}
    return {**found, "outcomes": dict(sorted(outcomes.items())), "faults": faults}


def _resumed(model: str, folder: Path, log: Path, expected: str) -> str:
    """The outcome of resuming a run that was killed, in words."""
    weights, began = folder.with_suffix(".weights"), folder.with_suffix(".began")
    weights.unlink(missing_ok=True)
    newest = max(int(path.name.partition("-")[2]) for path in folder.glob("checkpoint-*"))
    code, _ = forked(partial(train, model, folder, True), log)
    if code:
        return "the resume failed"
    if int(began.read_text()) != newest:
        return f"resumed from {began.read_text()} instead of {newest}"
    for line in (folder / "records.jsonl").read_bytes().splitlines():
        json.loads(line)  # none is torn
    return RESUMED if weights.read_text() == expected else "other weights"


def _begun_anew(model: str, folder: Path, log: Path, expected: str) -> str:
    """The outcome for a run that was killed before its first checkpoint: it cannot be resumed."""
    code, said = forked(partial(train, model, folder, True), log)
    if not code or "holds no whole checkpoint" not in said:
        return "resumed from nothing"
    code, _ = forked(partial(train, model, folder, False), log)
    return ANEW if code == 0 and folder.with_suffix(".weights").read_text() == expected else "other weights"


def writers(scratch: Path) -> dict[str, Any]:
    """A second process that wants to write the folder of a run under way."""
    model, folder = tiny.save(scratch / "model"), scratch / "shared"
    prepare, second = engine.GEARTrainer._prepare_inputs, scratch / "second.txt"

    def interrupted(trainer: Any, batch: Any) -> Any:
        if not second.exists():
            code, said = forked(partial(train, model, folder, False), scratch / "second.log")
            second.write_text(f"{code} {said.strip().splitlines()[-1]}")
        return prepare(trainer, batch)

    def first() -> None:
        engine.GEARTrainer._prepare_inputs = interrupted  # type: ignore[method-assign]
        train(model, folder, False)

    ended, _ = forked(first, scratch / "first.log")
    code, _, last = second.read_text().partition(" ")
    said = last.split(": ", 1)[-1].replace(str(scratch), "FOLDER").replace(gethostname(), "HOST")
    good = ended == 0 and code != "0" and said.startswith("output_dir: process")
    outcome = "the second is refused, the first ends well" if good else f"{ended}, {code}: {said}"
    return {"n": 1, "said": said, "outcomes": {outcome: 1}, "faults": [] if good else [outcome]}
