"""What the documents claim is run or looked up."""

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import gear_rl

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def python_of(page: str) -> str:
    """The one Python block of a page."""
    [block] = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)
    return block


def run_block(code: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    import os

    before = Path.cwd()
    os.chdir(folder)
    try:
        exec(compile(code, "README.md", "exec"), {})
    finally:
        os.chdir(before)
    return capsys.readouterr().out


def test_the_fourteen_lines_run_and_print_what_they_say(tmp_path, capsys):
    block = python_of("docs/concepts.md")
    printed = run_block(block, tmp_path, capsys)
    promised = re.search(r"# (\[[\d, ]+\])", block)
    assert printed.startswith(promised[1])
    assert len(block.splitlines()) == 14


def test_the_fourteen_lines_need_torch_and_jaxtyping_alone():
    code = python_of("docs/concepts.md") + (
        "\nimport sys\nheavy = {'trl', 'transformers', 'datasets', 'typer', 'pydantic'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_trl_example_of_the_readme_trains(tmp_path, capsys):
    printed = run_block(python_of("README.md"), tmp_path, capsys)
    assert "gear/divergence/mean" in printed, "TRL prints its log, with our metrics in it"


def test_the_environment_of_the_agents_page_trains(tmp_path, capsys):
    block = python_of("docs/agents.md")
    assert "gear/tools/raised" in run_block(block, tmp_path, capsys)


def test_every_kind_of_failure_is_on_the_agents_page():
    from gear_rl.engines.tools import FAILURES
    from gear_rl.signals.contexts import SOURCES

    page = (ROOT / "docs" / "agents.md").read_text(encoding="utf-8")
    assert [name for name in (*FAILURES, *SOURCES) if f"| `{name}` |" not in page] == []


def test_the_front_door_stays_short():
    assert len(README.split()) <= 900


def test_the_table_of_methods_has_a_row_for_each():
    from gear_rl.methods import METHODS

    code = "from gear_rl.cli import main; main()"
    words = [sys.executable, "-c", code, "methods", "--markdown"]
    rows = subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()[2:]
    assert [row.split("`")[1] for row in rows] == list(METHODS)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_link_or_picture_is_left_as_text(page):
    """A stray bracket shows as text where a picture should be."""
    from markdown_it import MarkdownIt

    for block in MarkdownIt("commonmark").enable("table").parse(page.read_text(encoding="utf-8")):
        for token in block.children or ():
            if token.type == "text":
                assert "](" not in token.content, f"{page.name}, line {block.map[0] + 1}: {token.content}"


def test_the_methods_page_is_made_from_the_docstrings_and_the_measured_costs():
    from gear_rl.cli.methods_page import methods_page, read_costs
    from gear_rl.methods import METHODS

    costs = read_costs(ROOT / "docs" / "results" / "method_costs.json")
    assert list(costs["methods"]) == list(METHODS), "run `gear bench methods`: a method has no measured cost"
    assert (ROOT / "docs" / "methods.md").read_text(encoding="utf-8") == methods_page(costs), (
        "run gear methods --page --costs docs/results/method_costs.json > docs/methods.md"
    )


def test_the_trl_script_of_the_examples_trains(tmp_path):
    main = runpy.run_path(str(ROOT / "examples" / "trl_math.py"))["main"]
    trainer = main(output_dir=str(tmp_path), max_steps=1)
    assert trainer.state.global_step == 1
    assert (tmp_path / "records.jsonl").exists()


def test_the_example_method_gives_what_its_docstring_says():
    module = runpy.run_path(str(ROOT / "examples" / "add_a_method.py"))
    import torch

    seen = gear_rl.TokenSignals(
        mask=torch.tensor([[True, True, True, False]]), student_entropy=torch.tensor([[0.1, 1.5, 0.7, 9.0]])
    )
    assert module["Uncertain"]()(torch.tensor([2.0]), seen).advantage.tolist() == [[0.0, 3.0, 3.0, 0.0]]


def test_the_example_configuration_is_valid():
    from gear_rl.runs.config import build_method, load_config

    config = load_config(ROOT / "examples" / "chain.yaml")
    assert build_method(config.credit) == gear_rl.Gear()
    assert config.trainer["learning_rate"] == 1e-4


def rows_of_equations() -> list[tuple[str, str, str]]:
    lines = (ROOT / "docs" / "equations.md").read_text(encoding="utf-8").splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    return [tuple(row) for row in cells if len(row) == 3][2:]


@pytest.mark.parametrize(("equation", "function", "test"), rows_of_equations(), ids=lambda text: text[:30])
def test_every_equation_names_a_function_and_a_test_that_exist(equation, function, test):
    import importlib

    for dotted in re.findall(r"`([\w.]+)`", function):
        module, attributes = "gear_rl", dotted.split(".")
        found = importlib.import_module(module)
        for attribute in attributes:
            name = f"{module}.{attribute}"
            found = getattr(found, attribute) if hasattr(found, attribute) else importlib.import_module(name)
            module = name
    for place in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", test):
        assert f"def {place[1]}(" in (ROOT / place[0]).read_text(encoding="utf-8"), (
            f"{place[0]} has no {place[1]}"
        )
    assert "`" in function
    assert "::" in test


def test_links_inside_the_repository_lead_somewhere():
    for document in PAGES:
        for target in re.findall(r"\]\(([^)#]+)\)", document.read_text(encoding="utf-8")):
            if not target.startswith("http"):
                assert (document.parent / target).exists(), f"{document.name} links to {target}"
