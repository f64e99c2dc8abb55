"""``gear init``: the files of a first run, to be replaced by one's own."""

import json
import shlex
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

import typer

from gear_rl.arena import chain, errands
from gear_rl.arena.task import FIRST_TRAIN_SEED
from gear_rl.errors import InputError, did_you_mean

_STARTERS = {"maths": "maths", "tools": "tools", "verl": "maths"}
"""The kinds of a first run, and the folder with their files."""


def init(
    folder: Annotated[Path, typer.Argument(help="Where the files go.")] = Path("first-run"),
    like: Annotated[str, typer.Option(help="maths, tools (an agent), or verl.")] = "maths",
) -> None:
    """Write the files of a first run, which starts at once on a CPU.

    They are a configuration, a reward or an environment, and 96 rows.
    Replace the model, the rows and the reward by yours, one after the other.
    """
    if like not in _STARTERS:
        raise InputError(f"--like: no starter {like!r}; {did_you_mean(like, _STARTERS)}")
    starter = files("gear_rl") / "cli" / "starters" / _STARTERS[like]
    texts = {file.name: file.read_text(encoding="utf-8") for file in starter.iterdir() if file.is_file()}
    rows = map(_agent_row if like == "tools" else _row, range(FIRST_TRAIN_SEED, FIRST_TRAIN_SEED + 96))
    texts["rows.jsonl"] = "".join(json.dumps(row) + "\n" for row in rows)
    for name in texts:
        if (folder / name).exists():
            raise InputError(f"{folder / name} exists; name another folder")
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    run = [
        "gear train --config run.yaml  # writes runs/first/report.html",
        "gear view runs/first",
        "gear teacher --config run.yaml  # does the teacher read what it is shown?",
    ]
    if like == "verl":
        run = ["gear export verl --config run.yaml --out verl --gpus 1", "bash verl/launch.sh"]
    cd = f"cd {shlex.quote(str(folder))}"
    typer.echo("\n".join([f"wrote {', '.join(sorted(texts))} in {folder}; now:\n", cd, *run]))


def _row(seed: int) -> dict[str, Any]:
    problem = chain.TASK.generate(seed, "default")
    return {"prompt": problem.text, "solution": problem.reference("trace", seed), "answer": problem.answer}


def _agent_row(seed: int) -> dict[str, Any]:
    problem = errands.generate(seed, "easy")
    codes = [call.arguments["code"] for call in problem.sends()]
    return {"prompt": problem.text, "items": problem.items, "codes": codes}
