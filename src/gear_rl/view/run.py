"""The page of one run: its numbers and curves, four completions coloured by credit, its settings.

Reads what a run leaves in its folder: ``trainer_state.json``, the records, ``gear.yaml``, the model card.
"""

import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import Any, cast

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from gear_rl.files import replace_file
from gear_rl.health import conclusion
from gear_rl.records import RECORDS, Record, read_records
from gear_rl.view.curves import curves_svg
from gear_rl.view.group_notes import is_weight_on_mistake, judge_groups, share_note
from gear_rl.view.terminal import instructiveness, recording_console, rollout_panel

NUMBERS = {
    "reward": "reward",
    "eval_reward": "held-out reward",
    "frac_reward_zero_std": "groups without a spread of rewards",
    "completions/mean_length": "completion length, tokens",
    "completions/clipped_ratio": "completions cut off",
    "gear/divergence/mean": "KL(student || teacher), nats a token",
    "gear/entropy/mean": "student's entropy, nats a token",
    "gear/segments/token_share": "tokens in segments of two or more",
    "gear/weight/max": "largest weight",
    "gear/fallbacks": "completions that kept their GRPO advantage",
    "gear/teacher/informed": "teacher informed (0.5 is chance)",
}
"""What the page's table shows of a trainer's log, and how it calls it."""
_SAID = re.compile(r"^(model|dataset|record_file): *(.+)$", re.MULTILINE)
"""Settings of a run in its ``gear.yaml``."""
_WIDTH = 96
"""Characters in a line of a completion."""


def save_run_page(folder: Path) -> Path:
    """Write ``report.html`` into a run's folder and return its path.

    ``ValueError`` where neither it nor a checkpoint in it has a ``trainer_state.json`` with a logged step.

    >>> save_run_page(Path("nowhere"))
    Traceback (most recent call last):
    ValueError: nowhere holds no run: there is no trainer_state.json in it, nor in a checkpoint; gear train writes
    it, trainer.save_state() in Python
    """
    states = sorted(folder.glob("checkpoint-*/trainer_state.json"), key=lambda path: path.stat().st_mtime)
    states += [path for path in (folder / "trainer_state.json",) if path.is_file()]
    if not states:
        raise ValueError(
            f"{folder} holds no run: there is no trainer_state.json in it, nor in a checkpoint; gear train "
            "writes it, trainer.save_state() in Python"
        )
    try:
        history = json.loads(states[-1].read_text(encoding="utf-8"))["log_history"]
    except (ValueError, LookupError, TypeError):
        raise ValueError(f"{states[-1]} is damaged: no log_history can be read; move it away") from None
    settings = folder / "gear.yaml"
    written = settings.read_text(encoding="utf-8") if settings.is_file() else ""
    said = {name: value.strip("'\"") for name, value in _SAID.findall(written)}
    records = folder / said.get("record_file", RECORDS)
    pages = Environment(
        loader=PackageLoader("gear_rl.view"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    found: list[bool | None] = []
    chosen = four_examples(_judge_file(records, found)) if records.is_file() else []
    page = pages.get_template("run.html.j2").render(
        title=_title(folder, said, chosen),
        facts=_facts(folder, states[-1]),
        ends=_ends(history),
        baseline=_baseline(folder),
        viewer=(folder / "credit.html").is_file(),
        folder=shlex.quote(str(folder)),
        conclusion=conclusion(history),
        numbers=list(_numbers(history)),
        curves=Markup(curves_svg(history)),
        completions=[Markup(_html(record)) for record in chosen],
        found=share_note(found),
        settings=written,
    )
    replace_file(folder / "report.html", page.encode())
    return folder / "report.html"


def _title(folder: Path, said: Mapping[str, str], chosen: Sequence[Record]) -> str:
    """Method, model and data of the run, and its folder."""
    trained = " on ".join(said[name] for name in ("model", "dataset") if name in said)
    return " · ".join(filter(None, (chosen[0].method if chosen else "", trained, folder.name)))


def _facts(folder: Path, state: Path) -> str:
    """The day of the run, and the versions that its model card names."""
    day = datetime.fromtimestamp(state.stat().st_mtime, UTC).strftime("%Y-%m-%d")
    card = folder / "README.md"
    text = card.read_text(encoding="utf-8") if card.is_file() else ""
    versions = re.findall(r"^- (TRL|Transformers|Pytorch): (\S+)$", text, re.MULTILINE)
    return ", ".join([f"ended {day}", *(f"{name} {version}" for name, version in versions)])


def _ends(history: Sequence[Mapping[str, Any]]) -> str:
    """What the columns of the table average."""
    logged = sum("reward" in row for row in history)
    few = max(1, logged // 5)
    steps = "step" if few == 1 else f"{few} steps"
    return f"First and last: means of the first and the last {steps} of {logged} logged ones"


def _baseline(folder: Path) -> str:
    """Where the run is compared, or that it is not."""
    if (folder.parent / "comparison.jsonl").is_file():
        return "The comparison beside it says whether the method is better than GRPO."
    return (
        "This run has no baseline, so it does not say whether the method is better than GRPO: "
        f"gear compare --config {shlex.quote(str(folder / 'gear.yaml'))} --quick"
    )


def _judge_file(file: Path, found: list[bool | None]) -> Iterator[Record]:
    """The records beside their groups; adds to ``found`` whether each one's mistake has the largest weight."""
    for record in judge_groups(read_records(file)):
        found.append(is_weight_on_mistake(record))
        yield record


def four_examples(records: Iterable[Record]) -> list[Record]:
    """The most instructive of the praised and of the blamed completions, in both halves of the run."""
    best: dict[tuple[int, bool], Record] = {}
    for record in records:
        key = record.step, record.advantage > 0
        best[key] = max(best.get(key, record), record, key=instructiveness)
    middle = max((step for step, _ in best), default=0) / 2
    halves: dict[tuple[bool, bool], Record] = {}
    for (step, praised), record in best.items():
        key = step > middle, praised
        halves[key] = max(halves.get(key, record), record, key=instructiveness)
    return [halves[key] for key in sorted(halves)]


def _numbers(history: Sequence[Mapping[str, Any]]) -> Iterable[tuple[str, str, str]]:
    for key, name in NUMBERS.items():
        values = [cast(float, row[key]) for row in history if isinstance(row.get(key), int | float)]
        if values:
            few = max(1, len(values) // 5)
            yield name, f"{fmean(values[:few]):.3g}", f"{fmean(values[-few:]):.3g}"


def _html(record: Record) -> str:
    console = recording_console([rollout_panel(record, legend=False)], _WIDTH)
    return console.export_html(inline_styles=True, code_format="{code}")
