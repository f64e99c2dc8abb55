"""What the documents claim is run or looked up."""

import importlib
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest

import gear_rl
import gear_rl.arena.task
from gear_rl.arena.task import TASKS

ROOT = Path(__file__).parents[1]
BESIDE = ("README.md", "CONTRIBUTING.md", "results/README.md", "tests/equations.md")
PAGES = [*(ROOT / page for page in BESIDE), *sorted((ROOT / "docs").rglob("*.md"))]


FENCED = re.compile(r"^```(\w*) *([^\n]*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
"""Language, what else its line says, and text of a block."""
NEEDED = {"docs/data.md": ("math_verify", "reasoning_gym")}
"""Optional packages that a page's Python imports."""
TRAINS = {"docs/training.md": "gear/divergence/mean", "docs/agents.md": "gear/tools/raised"}
"""What TRL's log says in pages that train: our metrics are in it."""


def python_of(page: str) -> list[str]:
    """The Python blocks of a page that run; one that cannot says so to the reader: ```python title="fragment"."""
    blocks = FENCED.findall((ROOT / page).read_text(encoding="utf-8"))
    return [code for language, title, code in blocks if language == "python" and "fragment" not in title]


def with_python() -> list[str]:
    pages = [str(page.relative_to(ROOT)) for page in PAGES]
    return [page for page in pages if python_of(page)]


@pytest.mark.parametrize("page", with_python())
def test_the_python_of_a_page_runs_and_prints_what_its_comments_say(
    page, tmp_path, monkeypatch, capsys, request
):
    """From top to bottom in one folder; `print(...)  # 4` or `# 4: in words` has to print 4."""
    for package in NEEDED.get(page, ()):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    kept = dict(TASKS)  # docs/your-task.md adds one
    request.addfinalizer(lambda: (TASKS.clear(), TASKS.update(kept)))
    names: dict = {"__name__": "page"}
    for block in python_of(page):
        exec(compile(block, page, "exec"), names)
        printed = capsys.readouterr().out
        promised = re.findall(r"^print\(.*\)  # (.*)$", block, re.MULTILINE)
        if promised:
            lines = printed.splitlines()
            assert len(lines) == len(promised), printed
            for line, words in zip(lines, promised, strict=True):
                assert words == line or words.startswith(f"{line}: "), (
                    f"{line!r}, but the page says {words!r}"
                )
    if page in TRAINS:
        assert any(TRAINS[page] in row for row in names["trainer"].state.log_history)


COMMANDS = {"gear": "gear_rl.cli.app", "python -m benchmarks": "benchmarks.app"}
"""Where the command lines are that the documents name."""
STARTER = ROOT / "src" / "gear_rl" / "cli" / "starters" / "maths"
"""Where `gear init` takes the run.yaml from that the guides train."""
COMMAND = rf"(?:{'|'.join(COMMANDS)}) [a-z]"


def commands_of_pages() -> list[tuple[str, str]]:
    """Page and command for every command of ours in the documents, in blocks and inside the text."""
    commands: dict[tuple[str, str], None] = {}
    for page in PAGES:
        text, name = page.read_text(encoding="utf-8"), str(page.relative_to(ROOT))
        for language, _, body in FENCED.findall(text):
            if language == "text":  # what a command printed
                continue
            lines = re.sub(r"\\\n\s*", " ", body).splitlines()
            commands |= {(name, line.strip()): None for line in lines if re.match(rf" *{COMMAND}", line)}
        inline = re.findall(rf"`({COMMAND}[^`]*)`", FENCED.sub("", text).replace("\n", " "))
        commands |= {(name, code): None for code in inline}
    return list(commands)


@pytest.mark.parametrize(("page", "command"), commands_of_pages(), ids=lambda text: text[:60])
def test_every_command_of_a_page_is_one_that_the_command_line_takes(page, command):
    """Commands and options exist and values are of their kind; settings after them are those of a run's file."""
    import typer.main

    from gear_rl.runs.run_config import load_config

    loop = {"credit": "gear"}  # variables of a shell's loop; the others are numbers
    said = re.sub(r"\$(\w+)", lambda variable: loop.get(variable[1], "1"), command.partition(" > ")[0])
    [name] = [name for name in COMMANDS if said.startswith(f"{name} ")]
    words = [word for word in shlex.split(said.removeprefix(name), comments=True) if word != "..."]
    known = typer.main.get_command(importlib.import_module(COMMANDS[name]).app)
    context = known.make_context(name, [], resilient_parsing=True)
    while hasattr(known, "get_command") and words:
        name = words.pop(0)
        known = known.get_command(context, name)
        assert known is not None, f"{page}: {command}: there is no command {name!r}"
        context = known.make_context(name, [], parent=context, resilient_parsing=True)
    if not words:
        return
    context = known.make_context(name, words, parent=context)  # raises for an option that does not exist
    if name == "train":
        config = context.params["config"]
        folder = STARTER if config == Path("run.yaml") else ROOT
        load_config(config and folder / config, context.args)
    elif name in ("demo", "score"):
        own = ["--model", "arena", "--dataset", "arena", "--reward", "arena"]
        method = ["--credit", context.params["credit"]] if name == "demo" else []
        load_config(None, [*own, *method, *context.args])


def test_the_methods_page_is_made_from_docstrings():
    """A new method comes onto the page before a release, not with its code."""
    from benchmarks.page import renewed

    page = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")
    marks = re.findall(r"^<!-- method-(\w+) -->$", page, re.MULTILINE)
    assert len(marks) > 20 and marks == re.findall(r"^## (\w+)$", page, re.MULTILINE)
    assert page == renewed(page), "run make pages"


def test_the_long_description_has_no_relative_link_or_picture():
    """A package index shows the README alone; what pyproject.toml puts in its place."""
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    hook = pyproject["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]
    parts = hook["fragments"]
    text = "".join(part.get("text") or (ROOT / part["path"]).read_text(encoding="utf-8") for part in parts)
    for change in hook["substitutions"]:
        text = re.sub(change["pattern"], change["replacement"], text)
    targets = re.findall(r"\]\(([^)]*)\)|(?:src|srcset|href)=[\"']([^\"']*)", text)
    assert targets and all(target.startswith("https://") for pair in targets for target in pair if target)
    assert not re.search(r"^!", text, re.MULTILINE), "the rest of a picture"


def test_the_diff_of_the_readme_trains(tmp_path, monkeypatch):
    """Composed as it stands, with a dataset and a model of this machine in place of the hub's."""
    import datasets

    from gear_rl.runs.tiny_model import save_tiny_model

    text = (ROOT / "README.md").read_text(encoding="utf-8")
    [block] = re.findall(r"```diff\n(.*?)```", text, re.DOTALL)
    code = "\n".join(line[1:] for line in block.splitlines() if not line.startswith("-"))
    [named] = re.findall(r"# (prompt.*)", code)
    fixed = {
        "tools": '[{"type": "function", "function": {"name": "find", "parameters": {"type": "object"}}}]',
        "calls": '[{"name": "find", "arguments": {"city": "Rome"}}]',
        "solution": "<tool_call>...</tool_call>",
    }
    rows = [{"prompt": [{"role": "user", "content": f"Find {n}."}], **fixed} for n in range(4)]
    assert [*rows[0]] == re.findall(r"\w+", named.replace("(chat)", "")), "a model reads what it can call"
    loaded = datasets.Dataset.from_list(rows)
    monkeypatch.setattr(datasets, "load_dataset", lambda kind, data_files, split: loaded)
    monkeypatch.chdir(tmp_path)
    small = (
        "max_steps=1, max_completion_length=4, use_cpu=True, bf16=False, report_to='none', save_strategy='no'"
    )
    code = code.replace('"Qwen/Qwen3-0.6B"', repr(save_tiny_model(tmp_path / "model")))
    names: dict[str, Any] = {}
    exec(code.replace('"runs/calls"', f'"runs/calls", {small}'), names)
    trainer = names["trainer"]
    assert trainer.state.global_step == 1 and trainer.credit == gear_rl.Gear()
    assert trainer.state.log_history[0]["gear/fallback/no_context"] == 0


def rows_of_equations() -> list[tuple[str, str, str]]:
    lines = (ROOT / "tests" / "equations.md").read_text(encoding="utf-8").splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    return [tuple(row) for row in cells if len(row) == 3][2:]


@pytest.mark.parametrize(("equation", "function", "test"), rows_of_equations(), ids=lambda text: text[:30])
def test_every_equation_names_a_function_and_a_test_that_exist(equation, function, test):
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
