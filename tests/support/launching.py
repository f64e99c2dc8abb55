"""What a shell script hands to `python3 -m verl.trainer.main_ppo`, without starting it."""

import json
import os
import re
import stat
import subprocess
from collections.abc import Sequence
from pathlib import Path

_STUB = '#!/bin/sh\nexec "$REAL_PYTHON" -c \'import json, sys; print(json.dumps(sys.argv[1:]))\' "$@"\n'


def overrides(script: Path, folder: Path, python: str, more: Sequence[str] = ()) -> list[str]:
    """The overrides of a script that is run with a `python3` which only prints them; `more` are further ones."""
    stub = folder / "python3"
    stub.write_text(_STUB, encoding="utf-8")
    stub.chmod(stub.stat().st_mode | stat.S_IEXEC)
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "REAL_PYTHON": python}
    done = subprocess.run(
        ["bash", str(script), *more], capture_output=True, text=True, check=True, env=environment
    )
    module, *words = json.loads(done.stdout)[1:]
    assert module == "verl.trainer.main_ppo"
    return words


def options(script: Path) -> list[str]:
    """The settings behind the mark "#:", which a user takes away."""
    return re.findall(r"^ *#: (.+)$", script.read_text(encoding="utf-8"), re.MULTILINE)
