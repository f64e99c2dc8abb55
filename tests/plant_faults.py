"""Plant each fault of planted_faults.yaml in a copy of the source, and see that the test named beside it fails.

python tests/plant_faults.py            # all of them: some minutes
python tests/plant_faults.py segments   # those whose fault or file contains the word
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
BY_FILE = yaml.safe_load((ROOT / "tests/planted_faults.yaml").read_text(encoding="utf-8"))
FAULTS = [{"file": file, **fault} for file, faults in BY_FILE.items() for fault in faults]

VERL = os.environ.get("VERL_PYTHON", str(ROOT / ".venv-verl" / "bin" / "python"))
"""The interpreter of verl's environment, which the faults of its tests need."""


def is_caught(fault: dict[str, str]) -> bool:
    """Whether the test fails with the fault; raises if the text to replace is not there exactly once."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "src")
        shutil.copytree(ROOT / "src", source)
        file = source.parent / fault["file"]
        text = file.read_text(encoding="utf-8")
        if text.count(fault["old"]) != 1:
            raise ValueError(
                f"{fault['file']} has {fault['old']!r} {text.count(fault['old'])} times, not once"
            )
        file.write_text(text.replace(fault["old"], fault["new"]), encoding="utf-8")
        paths = f"{source} {ROOT} {ROOT / 'tests'}"
        python = VERL if fault["test"].startswith("tests/verl_cpu") else sys.executable
        command = [python, "-m", "pytest", "-q", "-x", "-o", f"pythonpath={paths}", fault["test"]]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths.replace(" ", os.pathsep)}
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        raise RuntimeError(f"{fault['test']}: {done.stdout[-500:]}{done.stderr[-500:]}")
    return done.returncode == 1


def main(word: str = "") -> int:
    """Print a line for each fault; the exit status is the number that nothing caught."""
    chosen = [f for f in FAULTS if word in f["fault"] + f["file"]]
    missed = 0
    for fault in chosen:
        caught = fault["test"] is not None and is_caught(fault)
        missed += not caught
        found = "caught" if caught else "NOT CAUGHT"
        print(f"{found}  {fault['file']}: {fault['fault']} ({fault['test']})", flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} caught")
    return missed


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2]))
