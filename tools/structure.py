"""Measure how the package is built: what one training step goes through, and the size of its code.

python -m tools.structure          # a table; docs/decisions/0021-structure-in-numbers.md keeps two of them
python -m tools.structure --names  # and the functions and files behind it
"""

import argparse
import ast
import io
import re
import sys
import tempfile
import tokenize
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).parents[1] / "src" / "gear_rl"
SETTINGS = ["--max_steps", "2", "--per_device_train_batch_size", "16", "--report_to", "none"]
BARE = re.compile(
    r"_*([a-z]|[a-z]+(?<!ne)(?<!se)(?<!fe)ed|broken|built|chosen|drawn|done|found|given|held|kept|left|lost|made|meant"
    r"|seen|sent|shown|taken|taught|told|about|absent|after|apart|beside|each|even|first|four|instructive|jagged"
    r"|late|likelier|many|of|once|one|own|plain|plainest|previous|right|safe|short|steady|tallest|tidy|together"
    r"|typical|unique|visible|whole|wide|within|without|worth)"
)
"""Names that say no thing: a letter, a participle, a filler."""
Place = tuple[str, str]
"""A file of the package, and a function in it."""
Counted = dict[str, list[str]]
"""The name of a number, and what it counts."""


def trace_step() -> list[tuple[bool, Place]]:
    """The calls (True) and returns of the package's functions in the second step of examples/chain.yaml.

    Comprehensions do not count, which newer Pythons run inside their function.
    """
    from gear_rl import GEARTrainer
    from gear_rl.cli import main

    events: list[tuple[bool, Place]] = []
    steps: Iterator[int] = iter(range(2))
    plain_step: Callable[..., Any] = GEARTrainer.training_step

    def note_event(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event in ("call", "return") and code.co_filename.startswith(f"{ROOT}/") and code.co_name[0] != "<":
            file = Path(code.co_filename).relative_to(ROOT).as_posix()
            events.append((event == "call", (file, code.co_qualname)))

    def traced_step(*args: Any, **options: Any) -> Any:
        is_first = next(steps) == 0
        sys.setprofile(None if is_first else note_event)
        try:
            return plain_step(*args, **options)
        finally:
            sys.setprofile(None)

    GEARTrainer.training_step = traced_step
    config = ROOT.parents[1] / "examples" / "chain.yaml"
    with tempfile.TemporaryDirectory() as folder:
        sys.argv = ["gear", "train", "--config", str(config), "--output_dir", folder, *SETTINGS]
        sys.argv.append("--overwrite")
        try:
            main()
        except SystemExit as done:
            if done.code:
                raise
    return events


def measure_step(events: list[tuple[bool, Place]]) -> Counted:
    """What one step goes through; a pair of functions counts once, however often one calls the other."""
    from tests.test_house import ALLOWED

    places = [place for _, place in events]
    callers: list[Place] = []
    calls = dict[tuple[Place, Place], None]()
    for is_call, place in events:
        if not is_call:
            callers.pop()
            continue
        if callers:
            calls[callers[-1], place] = None
        callers.append(place)
    changes = {pair for pair in pairwise(places) if pair[0][0] != pair[1][0]}
    climbs = [
        f"{own} -> {other}"
        for (own_file, own), (other_file, other) in calls
        if own_file.startswith("credit/") and _package(other_file) not in {"credit", *ALLOWED["credit"]}
    ]
    return {
        "files in one step": sorted({file for file, _ in places}),
        "functions in one step": sorted({f"{file}: {name}" for file, name in places}),
        "changes of file in one step": sorted(f"{a[1]} -> {b[1]}" for a, b in changes),
        "climbs from `credit`": climbs,
    }


def _package(file: str) -> str:
    return file.split("/")[0].removesuffix(".py")


def count_code_lines(text: str) -> int:
    """Lines of code, without docstrings, comments and blank lines.

    >>> count_code_lines('def f():\\n    \"\"\"One.\"\"\"\\n\\n    return 1  # why\\n')
    2
    """
    ignored = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in (*ignored, tokenize.ENDMARKER):
            lines |= set(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Expr(value=ast.Constant(value=str())):
                lines -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
            case _:
                pass
    return len(lines)


def bare_functions(tree: ast.AST) -> list[str]:
    """The functions whose name is a participle or a filler alone; a method's noun is its object.

    >>> bare_functions(ast.parse("def _taken(): ...\\ndef take_rows(): ...\\nclass A:\\n    def kept(self): ..."))
    ['_taken']
    """
    nodes = list(ast.walk(tree))
    methods = {id(node) for owner in nodes if isinstance(owner, ast.ClassDef) for node in owner.body}
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef) and id(node) not in methods]
    return [node.name for node in functions if BARE.fullmatch(node.name)]


def measure_code() -> tuple[Counter[str], Counted]:
    """Lines of code of each package, and what is long, wide or has a name that says little."""
    lines, stems = Counter[str](), dict[str, list[str]]()
    long, wide, bare = list[str](), list[str](), list[str]()
    for path in sorted(ROOT.rglob("*.py")):
        text, file = path.read_text(encoding="utf-8"), path.relative_to(ROOT).as_posix()
        lines[_package(file)] += count_code_lines(text)
        if path.stem != "__init__":
            stems.setdefault(path.stem, []).append(file)
        tree = ast.parse(text)
        bare += [f"{file}: {name}" for name in bare_functions(tree)]
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
                if (node.end_lineno or 0) - node.lineno >= 60:
                    long.append(f"{file}: {node.name}")
                if len([one for one in arguments if one.arg not in ("self", "cls")]) > 8:
                    wide.append(f"{file}: {node.name}")
    return lines, {
        "functions over 60 lines": long,
        "functions of more than eight parameters": wide,
        "file names that stand twice or more": [
            " ".join(files) for files in stems.values() if len(files) > 1
        ],
        "functions named without a noun": bare,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        "python -m tools.structure", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--names", action="store_true", help="list what was counted")
    names = parser.parse_args().names
    step = measure_step(trace_step())
    lines, code = measure_code()
    rows = {name: len(found) for name, found in (step | code).items()}
    rows |= {"lines of code": lines.total(), **{f"- `{name}`": n for name, n in sorted(lines.items())}}
    print("\n| | |\n|---|---:|", *(f"| {name} | {number:,} |" for name, number in rows.items()), sep="\n")
    for name, found in (step | code).items() if names else ():
        print(f"\n{name}:", *found, sep="\n  ")


if __name__ == "__main__":
    main()
