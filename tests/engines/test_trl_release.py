"""What we take from TRL's trainer is the table of trl_names.md, and a release that was never run."""

import ast
import inspect
import re
from pathlib import Path

import pytest
from transformers import Trainer
from trl import GRPOTrainer

import gear_rl
from gear_rl.engines.trl.release import CREDIT_NAMES, TESTED, check_trl

ROOT = Path(gear_rl.__file__).parent
DURABLE = ("durable.py", "evaluation.py")
READ = ("attr", "value")
SOURCE = inspect.getsource(GRPOTrainer) + inspect.getsource(Trainer)
PRIVATE = {
    name for name in {*dir(GRPOTrainer), *re.findall(r"self\.(_\w+)", SOURCE)} if re.match("_[^_]", name)
}


def names_used(path: Path, fields: tuple[str, ...]) -> set[str]:
    """TRL's private names in a file: attributes, names as text, and what a class of ours overrides."""
    names = set[str]()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        for field in fields:
            value = getattr(node, field, None)
            names |= {value} & PRIVATE if isinstance(value, str) else set()
    return names


def table() -> dict[str, tuple[set[str], str]]:
    """Of each name in the table who takes it, and the test that notices a change."""
    lines = Path(__file__).with_name("trl_names.md").read_text(encoding="utf-8").splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| `")]
    return {
        name: ({*who.split(", ")}, test)
        for names, who, _, test in rows
        for name in re.findall(r"`(\w+)`", names)
    }


def test_the_table_is_what_the_code_takes():
    used: dict[str, set[str]] = {}
    for folder, fields in (("lab", READ), ("engines/trl", (*READ, "name", "id"))):
        for path in (ROOT / folder).glob("*.py"):
            half = "durable" if path.name in DURABLE else "credit"
            for name in names_used(path, fields) if path.name != "release.py" else ():
                used.setdefault(name, set()).add("laboratory" if folder == "lab" else half)
    assert used == {name: who for name, (who, _) in table().items()}
    assert sorted(name for name, who in used.items() if "credit" in who) == list(CREDIT_NAMES)


@pytest.mark.parametrize("test", sorted({test for _, test in table().values()}))
def test_the_tests_of_the_table_exist(test):
    file, name = re.fullmatch(r"`([\w/]+\.py)::(\w+)`", test).groups()
    assert f"def {name}(" in (ROOT.parents[1] / file).read_text(encoding="utf-8")


@pytest.mark.parametrize("version", ["1.15.0", "1.17.0.dev0", "2.0.0"])
def test_a_release_that_was_never_run_is_warned_of_and_runs(caplog, version):
    check_trl(version)
    assert f"trl {version} was never run with gear-rl" in caplog.text
    caplog.clear()
    check_trl(f"{TESTED[0]}9")
    assert not caplog.text


def test_a_release_without_a_name_of_the_credit_is_refused(monkeypatch):
    monkeypatch.delattr(GRPOTrainer, "_compute_loss")
    message = r"^trl 2\.0\.0: GRPOTrainer has no _compute_loss, which token credit needs; install trl>=1\.14"
    with pytest.raises(ImportError, match=message):
        check_trl("2.0.0")
