"""verl's environment has no TRL: the parts that verl uses work where `import trl` fails."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BLOCKED = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("trl", "accelerate"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing())
import importlib.util
real = importlib.util.find_spec
def find_spec(name, package=None):
    return None if name.partition(".")[0] in ("trl", "accelerate") else real(name, package)
importlib.util.find_spec = find_spec
"""
"""Before anything else: TRL is not there, and neither is accelerate, which only TRL's trainer needs of us."""

USES = {
    "an export for verl": """
import tempfile
from pathlib import Path
import pytest
from gear_rl.errors import InputError
from gear_rl.runs.verl.launch_files import export, read_run
words = ["--model", "arena", "--dataset", "arena/easy", "--reward", "arena", "--held_out", "8"]
words += ["--per_device_train_batch_size", "64", "--credit.alpha", "0.5", "--some_setting_of_trl", "1"]
with tempfile.TemporaryDirectory() as folder:
    said = []
    done = export(read_run(None, words), Path(folder), say=said.append)
    assert done == {"train": 4096, "test": 8} and any("some_setting_of_trl" in text for text in said), done
for setting, value in (("learning_rate", "fast"), ("num_generations", "0")):
    with pytest.raises(InputError, match=setting):
        read_run(None, [*words, f"--{setting}", value])
""",
    "gear score, of an agent and of a user's file": """
import json, sys, tempfile
from pathlib import Path
from gear_rl.cli import main
from gear_rl.lab.marked import EXAMPLE
with tempfile.TemporaryDirectory() as folder:
    data = Path(folder) / "mine.jsonl"
    data.write_text(EXAMPLE + "\\n")
    for words in (["--task", "errands", "--tier", "easy", "--n", "2"], ["--data", str(data), "--model", "arena"]):
        sys.argv = ["gear", "score", "--methods", "gear", *words]
        try:
            main()
        except SystemExit as end:
            assert not end.code, end.code
""",
    "methods, signals and the credit step": """
import importlib, pkgutil
import gear_rl.credit, gear_rl.methods, gear_rl.signals, gear_rl.arena, gear_rl.data
for package in (gear_rl.credit, gear_rl.methods, gear_rl.signals, gear_rl.arena, gear_rl.data):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)
""",
}


@pytest.fixture(scope="module")
def ended() -> dict[str, str]:
    """How each use ended: nothing, or what it raised. One process for all, since each loads torch."""
    code = f"""{BLOCKED}
import json, traceback
ended = {{}}
for use, code in {USES!r}.items():
    try:
        exec(code, {{}})
        assert "trl" not in sys.modules
        ended[use] = ""
    except BaseException:
        ended[use] = traceback.format_exc()
print(json.dumps(ended))
"""
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=Path(__file__).parent)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("use", USES)
def test_it_works_without_trl(use, ended):
    assert not ended[use], ended[use]
