"""The architecture: imports point down, and the core needs torch alone."""

import ast
import sys
from pathlib import Path

import pytest

import gear_rl
from tools.structure import bare_functions

ROOT = Path(gear_rl.__file__).parent
GROUND = {"types", "traits", "tensor", "errors", "files", "environments", "records", "health", "versions"}
GROUND |= {"answer_text", "rollouts", "engine", "settings", "user_objects", "yaml_values"}
BELOW_RUNS = GROUND | {"methods", "method_builder", "signals", "model", "credit", "engines", "arena", "data"}
EVERYTHING = BELOW_RUNS | {"view", "lab", "runs"}
ALLOWED = {  # package: what it may import; docs/decisions/0002 says why where it differs from a first guess
    "types": {"tensor"},
    "traits": {"types", "settings"},
    "tensor": set[str](),
    "errors": set[str](),
    "files": set[str](),
    "environments": set[str](),
    "answer_text": set[str](),
    "settings": {"errors"},
    "user_objects": {"errors"},
    "yaml_values": {"errors"},
    "records": {"files"},
    "health": set[str](),
    "versions": set[str](),
    "rollouts": {"types", "tensor"},
    "engine": {"types", "tensor", "rollouts", "records"},
    "methods": GROUND | {"signals"},
    "method_builder": GROUND | {"methods"},
    "model": GROUND,
    "signals": GROUND | {"model"},
    "view": GROUND,
    "credit": GROUND | {"signals", "model"},
    "engines": GROUND | {"signals", "model", "credit", "methods", "method_builder"},
    "arena": GROUND | {"signals"},
    "data": GROUND | {"arena"},
    "runs": BELOW_RUNS,
    "lab": BELOW_RUNS | {"runs", "view"},
    "cli": EVERYTHING,
}
CORE = {"types", "traits", "rollouts", "engine", "tensor", "methods", "model", "signals", "credit"}
ON_REQUEST = {"signals/transport.py": {"ot"}, "signals/steps.py": {"transformers"}}
"""Libraries that one file of those packages may import, inside a function: POT solves transport, transformers
loads a process reward model."""
TESTED_ELSEWHERE = {
    "cli/app": "cli/test_console.py",
    "cli/compare": "lab/test_comparison.py",
    "cli/export": "runs/test_launch_files.py",
    "cli/model": "runs/test_model_wheels.py",
    "cli/starters/maths/reward": "cli/test_init.py",
    "cli/starters/tools/environment": "cli/test_init.py",
    "cli/teacher": "lab/test_teacher_scores.py",
    "credit/plan": "credit/test_credit_step.py",
    "credit/result_records": "engines/test_trl_agents.py",
    "engines/verl/worker": "verl_cpu/test_sharded.py",
    "lab/sft": "lab/test_run_plan.py",
    "runs/tiny_model": "test_docs.py",
    "runs/verl/credit_trainer": "verl_cpu/test_parity.py",
    "runs/verl/plugin": "verl_cpu/test_refused.py",
}
"""Modules with neither a test file nor an executed example of their own: a command that calls one module, files
of a user, types, and what verl alone runs."""
TWICE = {
    "engine": "each engine's folder has one, for engine.py",
    "rollouts": "each engine's folder has one, for rollouts.py",
    "problem": "each task of the arena has one",
    "truth": "two tasks of the arena have one",
    "model": "`gear model`, and the model of the arena",
    "teacher": "`gear teacher`, and the weights of a teacher",
}
"""File names that stand more than once under src, on purpose."""
FILES = sorted(path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py")


def package_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imports_of(path: Path) -> set[str]:
    """Every module that the file imports, at the top or inside a function."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.relative_to(ROOT)}: write imports in full, from gear_rl down"
            names.add(node.module or "")
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return names


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_down(path: Path):
    package = package_of(path)
    assert package in ALLOWED, f"a new package: say in tests/test_house.py what {package} may import"
    used = {name.split(".")[1] for name in imports_of(path) if name.startswith("gear_rl.")} - {package}
    assert used <= ALLOWED[package], (
        f"{path.relative_to(ROOT)} may not import {sorted(used - ALLOWED[package])}"
    )
    assert "gear_rl" not in imports_of(path) or package == "cli", (
        "import from the package, not through the front door"
    )


def test_shapes_are_checked_at_run_time_wherever_they_are_written(pytestconfig: pytest.Config):
    """The list in pyproject.toml has every module that writes shapes, and nothing that writes none."""
    *checked, _ = pytestconfig.getoption("jaxtyping_packages").split(",")
    files = {f"gear_rl.{_dotted(path, ROOT)}": path for path in FILES}
    folder = ROOT.parents[1] / "benchmarks"
    files |= {f"benchmarks.{_dotted(path, folder)}": path for path in folder.rglob("*.py")}
    written = [name for name, path in files.items() if "jaxtyping" in imports_of(path)]
    missing = [name for name in written if not any(f"{name}.".startswith(f"{one}.") for one in checked)]
    assert not missing, f"name them in --jaxtyping-packages of pyproject.toml: {missing}"
    empty = [one for one in checked if not any(f"{name}.".startswith(f"{one}.") for name in written)]
    assert not empty, f"no shape is written there: {empty}"


def _dotted(path: Path, folder: Path) -> str:
    return ".".join(path.relative_to(folder).with_suffix("").parts)


@pytest.mark.parametrize("path", [p for p in FILES if package_of(p) in CORE], ids=lambda p: p.stem)
def test_the_core_needs_torch_jaxtyping_and_pydantic_alone(path: Path):
    foreign = {name.split(".")[0] for name in imports_of(path)} - set(sys.stdlib_module_names)
    foreign -= ON_REQUEST.get(str(path.relative_to(ROOT).as_posix()), set())
    assert foreign <= {"torch", "jaxtyping", "pydantic", "gear_rl"}, (
        f"{path.relative_to(ROOT)} imports {foreign}"
    )


def test_no_engine_imports_another():
    """What two engines share is at the top of `engines/`, and imports none of them."""
    engines = {path.name for path in (ROOT / "engines").iterdir() if path.is_dir() and path.name[0] != "_"}
    assert "trl" in engines
    for path in FILES:
        if package_of(path) == "engines":
            own = path.relative_to(ROOT).parts[1]
            used = {name.split(".")[2] for name in imports_of(path) if name.startswith("gear_rl.engines.")}
            assert used & engines <= {own}, f"{path.relative_to(ROOT)} imports {sorted(used & engines)}"


def test_only_one_file_shifts_by_one():
    """Turning predicting positions into emitted tokens is `tensor/logits.py`'s alone."""
    for path in FILES:
        if package_of(path) not in ("tensor", "credit"):
            assert "[:, :-1]" not in path.read_text(encoding="utf-8"), path.relative_to(ROOT)


def test_the_name_of_a_function_has_a_noun():
    """`take_settings`, not `taken`; a method's noun is its object."""
    bare = {str(path.relative_to(ROOT)): bare_functions(ast.parse(path.read_text("utf-8"))) for path in FILES}
    assert not any(bare.values()), {file: names for file, names in bare.items() if names}


def test_tests_follow_the_tree():
    """`a/b/c.py` is tested by `test_c.py` or `test_b_c.py` in `tests/a`, a command by `test_c_command.py` too.

    What an executed example shows needs no file.
    """
    tests = Path(__file__).parent
    untested = list[str]()
    for path in FILES:
        *folders, name = path.relative_to(ROOT).with_suffix("").parts
        names = ["_".join((*folders[n:], name)) for n in range(len(folders) + 1)]
        names += [f"{name}_command"] if folders == ["cli"] else []
        places = [tests.joinpath(*folders[:1]), *([tests / "verl_cpu"] if "verl" in folders else [])]
        files = [place / f"test_{own}.py" for place in places for own in names]
        if (
            name != "__init__"
            and ">>> " not in path.read_text("utf-8")
            and not any(f.exists() for f in files)
        ):
            untested.append("/".join((*folders, name)))
    assert {*untested} == {*TESTED_ELSEWHERE}
    assert all((tests / file).exists() for file in TESTED_ELSEWHERE.values())


def test_a_file_name_stands_once():
    stems = [path.stem for path in FILES if path.stem != "__init__"]
    assert {stem for stem in stems if stems.count(stem) > 1} == {*TWICE}


def test_the_citation_names_this_release():
    citation = (ROOT.parents[1] / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {gear_rl.__version__}\n" in citation
