"""Every file of the newest checkpoint, damaged in every way: is it passed over for the one before?"""

from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from shutil import copytree, rmtree
from typing import Any

from campaign.runs import STEPS, forked, train
from engines import tiny
from gear_rl.engines.trl.checkpoints import newest_whole

TRAINED = 4
"""Of each damage so many are also resumed and trained to the end."""


def _flip(file: Path, at: float) -> None:
    content = bytearray(file.read_bytes())
    content[int(at * len(content))] ^= 1 << int(at * 8)
    file.write_bytes(bytes(content))


DAMAGES: dict[str, Callable[[Path, float], object]] = {
    "delete": lambda file, at: file.unlink(),
    "cut": lambda file, at: file.write_bytes(file.read_bytes()[: int(at * file.stat().st_size)]),
    "empty": lambda file, at: file.write_bytes(b""),
    "flip": _flip,
}


def corruption(scratch: Path, seed: int) -> dict[str, Any]:
    """Every file and damage."""
    model, whole, folder = tiny.save(scratch / "model"), scratch / "whole", scratch / "damaged"
    code, said = forked(partial(train, model, whole, False), scratch / "whole.log")
    if code:
        raise RuntimeError(f"the run by itself fails:\n{said}")
    expected, newest = whole.with_suffix(".weights").read_text(), whole / f"checkpoint-{STEPS}"
    files = sorted(path.relative_to(newest) for path in newest.rglob("*") if path.is_file())
    draws, found, faults = Random(f"{seed} corruption"), Counter[str](), list[str]()
    for damage, apply in DAMAGES.items():
        for n, name in enumerate(files):
            if (newest / name).stat().st_size == 0 and damage != "delete":
                continue
            rmtree(folder, ignore_errors=True)
            copytree(whole, folder)
            apply(folder / newest.name / name, draws.random())
            chosen, outcome = newest_whole(folder, None)[0].name, "passed over"
            if chosen != f"checkpoint-{STEPS - 1}":
                outcome = f"{chosen} is taken"
            elif n < TRAINED:
                code, _ = forked(partial(train, model, folder, True), scratch / "damaged.log")
                same = code == 0 and folder.with_suffix(".weights").read_text() == expected
                outcome = "passed over, resumed, bit-identical" if same else "the resume failed"
            found[f"{damage}: {outcome}"] += 1
            if outcome not in ("passed over", "passed over, resumed, bit-identical"):
                faults.append(f"{damage} {name}: {outcome}")
    outcomes = dict(sorted(found.items()))
    return {"files": len(files), "n": found.total(), "outcomes": outcomes, "faults": faults}
