"""kill -9 at random times and inside writes, then resume: are the last weights those of a run left alone?"""

from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from shutil import rmtree
from socket import gethostname
from typing import Any

from campaign.runs import FIRST, Course, course, dying_at, forked, rng, torn_lines, train
from engines import tiny
from gear_rl.engines.folder import UNFINISHED


def kills(scratch: Path, n: int, seed: int, say: Callable[[int], None]) -> dict[str, Any]:
    """``n`` runs killed after their first checkpoint counts, half of them inside a write of another.

    ``say`` gets how many are done. A run that ends before its kill is not counted but killed once more.
    """
    model, expected, alone = _left_alone(scratch)
    draws, outcomes, faults = rng(seed, "kills"), Counter[str](), list[str]()
    half_written = before = 0
    while (done := outcomes.total()) < n:
        folder, log = scratch / f"run{done}", scratch / f"run{done}.log"
        work = partial(train, model, folder, False)
        if done % 2 == 0:
            number = draws.choice(alone.writes)
            where, ended = f"before change {number}", forked(dying_at(folder, number, work), log)
        else:
            after = draws.uniform(0, alone.seconds)
            where, ended = f"{after:.2f} s after {FIRST}", forked(work, log, after, since=folder / FIRST)
        if ended.code == 0 and folder.with_suffix(".weights").read_text() == expected and before < n:
            before += 1
        else:
            half_written += any((folder / UNFINISHED).glob("*/*"))
            killed = ended.code == -9
            outcome = _resumed(model, folder, log, expected) if killed else f"ended with code {ended.code}"
            outcomes[outcome] += 1
            if outcome != RESUMED:
                faults.append(f"kill {done} {where}: {outcome}: {log.read_text(errors='replace')[-2000:]}")
        rmtree(folder, ignore_errors=True)
        say(outcomes.total())
    return {
        "n": n,
        "changes_inside_writes": len(alone.writes),
        "half_written_checkpoints": half_written,
        "ended_before_the_kill": before,
        "outcomes": dict(sorted(outcomes.items())),
        "faults": faults,
    }


RESUMED = "resumed from the newest checkpoint, bit-identical"


def _left_alone(scratch: Path) -> tuple[str, str, Course]:
    """The model, the last weights of a run that nobody kills, and its course."""
    model = tiny.save(scratch / "model")
    whole = scratch / "whole"
    found = course(whole, partial(train, model, whole, False), scratch / "whole.log")
    return model, whole.with_suffix(".weights").read_text(), found


def _resumed(model: str, folder: Path, log: Path, expected: str) -> str:
    """What became of a run that was killed, in words."""
    weights, began = folder.with_suffix(".weights"), folder.with_suffix(".began")
    weights.unlink(missing_ok=True)
    newest = max(int(path.name.partition("-")[2]) for path in folder.glob("checkpoint-*"))
    if forked(partial(train, model, folder, True), log).code:
        return "the resume failed"
    if int(began.read_text()) != newest:
        return f"resumed from {began.read_text()} instead of {newest}"
    if torn_lines(folder / "records.jsonl"):
        return "a torn line of records"
    return RESUMED if weights.read_text() == expected else "other weights"


def early_kills(scratch: Path, n: int, seed: int, say: Callable[[int], None]) -> dict[str, Any]:
    """``n`` runs killed up to the moment when their first checkpoint counts: none is resumed, all begin anew."""
    model, expected, alone = _left_alone(scratch)
    draws, outcomes, faults = rng(seed, "early kills"), Counter[str](), list[str]()
    for i in range(n):
        folder, log = scratch / f"run{i}", scratch / f"run{i}.log"
        number = draws.randint(1, alone.first)
        ended = forked(dying_at(folder, number, partial(train, model, folder, False)), log)
        killed = ended.code == -9
        outcome = _begun_anew(model, folder, log, expected) if killed else f"ended with code {ended.code}"
        outcomes[outcome] += 1
        if outcome != _ANEW:
            faults.append(f"kill {i} before change {number}: {outcome}: {log.read_text()[-2000:]}")
        say(i + 1)
    return {"n": n, "outcomes": dict(sorted(outcomes.items())), "faults": faults}


_ANEW = "no checkpoint to resume from, said; begun anew, bit-identical"


def _begun_anew(model: str, folder: Path, log: Path, expected: str) -> str:
    resumed = forked(partial(train, model, folder, True), log)
    if not resumed.code or "holds no whole checkpoint" not in resumed.said:
        return "resumed from nothing"
    if forked(partial(train, model, folder, False), log).code:
        return "it cannot begin anew"
    same = folder.with_suffix(".weights").read_text() == expected
    return "other weights" if not same else _ANEW


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
