"""Every file of the newest checkpoint, damaged in every way: is it passed over for the one before?"""

from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from shutil import copytree, rmtree
from typing import Any

from campaign.runs import STEPS, forked, rng, train
from engines import tiny


def _delete(file: Path, at: float) -> None:
    file.unlink()


def _cut(file: Path, at: float) -> None:
    file.write_bytes(file.read_bytes()[: int(at * file.stat().st_size)])


def _empty(file: Path, at: float) -> None:
    file.write_bytes(b"")


def _flip(file: Path, at: float) -> None:
    content = bytearray(file.read_bytes())
    content[int(at * len(content))] ^= 1 << int(at * 8)
    file.write_bytes(bytes(content))


DAMAGES: dict[str, Callable[[Path, float], None]] = {
    "delete": _delete, "cut": _cut, "empty": _empty, "flip": _flip,
}  # fmt: skip


def corruption(scratch: Path, seed: int, say: Callable[[int], None], *, trained: int = 4) -> dict[str, Any]:
    """Every file and damage; the first ``trained`` of each damage are also resumed and trained to the end."""
    model = tiny.save(scratch / "model")
    whole = scratch / "whole"
    first = forked(partial(train, model, whole, False), scratch / "whole.log")
    if first.code:
        raise RuntimeError(f"the run by itself fails:\n{first.said}")
    expected = whole.with_suffix(".weights").read_text()
    newest = whole / f"checkpoint-{STEPS}"
    files = sorted(path.relative_to(newest) for path in newest.rglob("*") if path.is_file())
    draws, found, faults = rng(seed, "corruption"), Counter[str](), list[str]()
    done = 0
    for damage, apply in DAMAGES.items():
        for n, name in enumerate(files):
            folder = scratch / "damaged"
            rmtree(folder, ignore_errors=True)
            copytree(whole, folder)
            if (newest / name).stat().st_size == 0 and damage != "delete":
                continue
            apply(folder / newest.name / name, draws.random())
            outcome = _outcome(model, folder, expected, train_on=n < trained)
            found[f"{damage}: {outcome}"] += 1
            if outcome not in ("passed over", "passed over, resumed, bit-identical"):
                faults.append(f"{damage} {name}: {outcome}")
            done += 1
            say(done)
    return {"files": len(files), "n": done, "outcomes": dict(sorted(found.items())), "faults": faults}


def _outcome(model: str, folder: Path, expected: str, *, train_on: bool) -> str:
    from gear_rl.engines.trl.checkpoints import newest_whole

    chosen = newest_whole(folder, None)[0].name
    if chosen != f"checkpoint-{STEPS - 1}":
        return f"{chosen} is taken"
    if not train_on:
        return "passed over"
    weights = folder.with_suffix(".weights")
    weights.unlink(missing_ok=True)
    ended = forked(partial(train, model, folder, True), folder.with_suffix(".log"))
    if ended.code:
        return "passed over, but the resume failed"
    return "passed over, resumed, bit-identical" if weights.read_text() == expected else "other weights"
