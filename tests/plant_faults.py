"""Plant each fault of planted_faults.yaml in a copy of the source, and see that the test named beside it fails.

python tests/plant_faults.py                            # all of them: some minutes (`make faults`)
python tests/plant_faults.py segments                   # those whose fault or file contains the word
python tests/plant_faults.py --sample 10                # ten of them, others every day
python tests/plant_faults.py --sample 10 --date 2026-11-27  # that day's
"""

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import date
from importlib import import_module
from multiprocessing import get_context
from multiprocessing.connection import wait
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
BY_FILE = yaml.safe_load((ROOT / "tests/planted_faults.yaml").read_text(encoding="utf-8"))
FAULTS = [{"file": file, **fault} for file, faults in BY_FILE.items() for fault in faults]

VERL = os.environ.get("VERL_PYTHON", str(ROOT / ".venv-verl" / "bin" / "python"))
"""The interpreter of verl's environment, which the faults of its tests need."""
PROCESSES = 2
SHIFT = 10
"""Added to pytest's status, since a process that dies of an exception exits with 1, as a failed test does."""


def needs_verl(fault: dict[str, str]) -> bool:
    return fault["test"].startswith("tests/verl_cpu")


def run_planted(fault: dict[str, str], output: Path) -> None:
    """Exit with ``SHIFT`` and pytest's status for the test, the fault planted."""
    with output.open("w") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "src")
        shutil.copytree(ROOT / "src", source)
        file = source.parent / fault["file"]
        text = file.read_text(encoding="utf-8")
        if text.count(fault["old"]) != 1:
            sys.exit(f"its text is there {text.count(fault['old'])} times, not once")
        file.write_text(text.replace(fault["old"], fault["new"]), encoding="utf-8")
        paths = [str(source), str(ROOT), str(ROOT / "tests")]
        os.environ["PYTHONPATH"] = os.pathsep.join(paths)
        os.chdir(ROOT)
        options = ["-x", "-p", "no:cacheprovider", "-o", f"pythonpath={' '.join(paths)}", fault["test"]]
        options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
        if needs_verl(fault):
            status = subprocess.run([VERL, "-m", "pytest", *options], check=False).returncode
        else:
            status = pytest.main(options)
    sys.exit(SHIFT + status)


def chosen_faults(word: str, sample: int | None, day: str) -> list[dict[str, str]]:
    """The faults that hold the word, or that day's sample of them; those of verl only where it is installed."""
    faults = [fault for fault in FAULTS if word in fault["fault"] + fault["file"]]
    if not Path(VERL).exists():
        print(f"{sum(map(needs_verl, faults))} left out: there is no {VERL} (make install-verl)")
        faults = [fault for fault in faults if not needs_verl(fault)]
    return faults if sample is None else random.Random(day).sample(faults, min(sample, len(faults)))


def finished_faults(faults: list[dict[str, str]]) -> Iterator[tuple[dict[str, str], int, str]]:
    """Each fault with pytest's status and output, as they finish; ``PROCESSES`` at a time."""
    context, waiting, running = get_context("fork"), list(enumerate(faults)), {}
    with tempfile.TemporaryDirectory() as folder:
        while waiting or running:
            while waiting and len(running) < PROCESSES:
                number, fault = waiting.pop(0)
                output = Path(folder, str(number))
                process = context.Process(target=run_planted, args=(fault, output))
                process.start()
                running[process.sentinel] = process, fault, output
            for sentinel in wait(list(running)):
                process, fault, output = running.pop(sentinel)
                process.join()
                yield fault, process.exitcode - SHIFT, output.read_text(encoding="utf-8")


def main() -> int:
    """Print a line for each fault; the exit status is the number that nothing caught."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("word", nargs="?", default="")
    parser.add_argument("--sample", type=int)
    parser.add_argument("--date", default=date.today().isoformat())
    arguments = parser.parse_args()
    faults = chosen_faults(arguments.word, arguments.sample, arguments.date)
    # What conftest.py imports is loaded once, here: a forked process takes seconds less than a new one.
    sys.path.insert(0, str(ROOT / "tests"))
    import_module("conftest")
    num_caught = 0
    for fault, status, output in finished_faults(faults):
        num_caught += status == 1
        verdict = {0: "NOT CAUGHT", 1: "caught"}.get(status, f"NOT RUN: {output[-1000:]}")
        print(f"{fault['file']}: {fault['fault']} ({fault['test']})  {verdict}", flush=True)
    print(f"{num_caught} of {len(faults)} caught ({arguments.date})")
    return len(faults) - num_caught


if __name__ == "__main__":
    sys.exit(main())
