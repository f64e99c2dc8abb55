"""kill -9 at random times and inside writes, then resume: are the last weights those of a run left alone?"""

import json
from collections import Counter
from collections.abc import Callable
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


def kills(scratch: Path, n: int, seed: int, say: Callable[[int], None]) -> dict[str, Any]:
    """``n`` runs killed after their first checkpoint, half of them inside the write of another.

    A run that ends before its kill is not counted but killed once more.
    """
    model, whole = tiny.save(scratch / "model"), scratch / "whole"
    _, writes, seconds = course(whole, partial(train, model, whole, False), scratch / "whole.log")
    expected = whole.with_suffix(".weights").read_text()
    draws, outcomes, faults = Random(f"{seed} kills"), Counter[str](), list[str]()
    half_written = before = 0
    while (done := outcomes.total()) < n:
        folder, log = scratch / f"run{done}", scratch / f"run{done}.log"
        work = partial(train, model, folder, False)
        if done % 2 == 0:
            number = draws.choice(writes)
            where, (code, _) = f"before change {number}", forked(dying_at(folder, number, work), log)
        else:
            after = draws.uniform(0, seconds)
            where, (code, _) = f"{after:.2f} s after {FIRST}", forked(work, log, after, since=folder / FIRST)
        if code == 0 and folder.with_suffix(".weights").read_text() == expected and before < n:
            before += 1
        else:
            half_written += any((folder / UNFINISHED).glob("*/*"))
            outcome = _resumed(model, folder, log, expected) if code == -9 else f"ended with code {code}"
            outcomes[outcome] += 1
            if outcome != RESUMED:
                faults.append(f"kill {done} {where}: {outcome}: {log.read_text(errors='replace')[-2000:]}")
        rmtree(folder, ignore_errors=True)
        say(outcomes.total())
    found = {"n": n, "changes_inside_writes": len(writes), "half_written_checkpoints": half_written}
    found |= {"ended_before_the_kill": before}
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
    try:
        for line in (folder / "records.jsonl").read_bytes().splitlines():
            json.loads(line)
    except ValueError:
        return "a torn line of records"
    return RESUMED if weights.read_text() == expected else "other weights"


def early_kills(scratch: Path, n: int, seed: int, say: Callable[[int], None]) -> dict[str, Any]:
    """``n`` runs killed before their first checkpoint is in place: none is resumed, all begin anew."""
    model, whole = tiny.save(scratch / "model"), scratch / "whole"
    first, _, _ = course(whole, partial(train, model, whole, False), scratch / "whole.log")
    expected = whole.with_suffix(".weights").read_text()
    draws, outcomes, faults = Random(f"{seed} early kills"), Counter[str](), list[str]()
    for i in range(n):
        folder, log = scratch / f"run{i}", scratch / f"run{i}.log"
        number, work = draws.randint(1, first), partial(train, model, folder, False)
        code, _ = forked(dying_at(folder, number, work), log)
        resumed, said = forked(partial(train, model, folder, True), log)
        if code != -9:
            outcome = f"ended with code {code}"
        elif not resumed or "holds no whole checkpoint" not in said:
            outcome = "resumed from nothing"
        elif forked(work, log)[0]:
            outcome = "it cannot begin anew"
        else:
            outcome = ANEW if folder.with_suffix(".weights").read_text() == expected else "other weights"
        outcomes[outcome] += 1
        if outcome != ANEW:
            faults.append(f"kill {i} before change {number}: {outcome}: {log.read_text()[-2000:]}")
        say(i + 1)
    return {"n": n, "outcomes": dict(sorted(outcomes.items())), "faults": faults}


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
