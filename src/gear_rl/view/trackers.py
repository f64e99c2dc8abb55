"""Completions coloured by credit in the trackers of a run; both libraries show a page of HTML."""

from collections.abc import Iterable
from importlib import import_module
from typing import Any

from gear_rl.records import Record
from gear_rl.view.terminal import recording_console, rollout_panel

TRACKERS = ("wandb", "trackio")
"""Libraries with ``log`` and ``Html``; TensorBoard shows no HTML."""
_PAGE = (
    '<meta charset="utf-8"><pre style="font-family: monospace; color: black; background: white">{code}</pre>'
)


def track_credit(trainer: Any) -> None:
    """Log completions as a page ``gear/completions``, coloured as in ``gear view``, wherever the run reports.

    The trainer's ``report_to`` names the trackers, ``logging_steps`` says how often, ``num_completions_to_print``
    how many completions of a step (all where it is None). The page shows the student's prompt, never the
    privileged context. ``gear train`` calls this with ``log_completions: true``.
    """
    names = [name for name in TRACKERS if name in trainer.args.report_to]
    logged = 0

    def log_page(records: list[Record]) -> None:
        nonlocal logged
        if not records or records[0].step < logged + trainer.state.logging_steps:
            return
        logged = records[0].step
        page = completions_page(records[: trainer.args.num_completions_to_print])
        for tracker in map(import_module, names):
            tracker.log({"gear/completions": tracker.Html(page)})

    if names:
        trainer.record_subscribers.append(log_page)


def completions_page(records: Iterable[Record]) -> str:
    """Completions as HTML that stands alone, each in the frame of ``gear view``.

    >>> record = Record(
    ...     step=1, group=0, method="gear", prompt="1+1", tokens=["<b>"], ids=[7], mask=[1], turn=[0],
    ...     segment=[0], reward=1.0, advantage=0.5, credit=[0.5], weight=[1.0],
    ... )
    >>> "&lt;b&gt;" in completions_page([record])
    True
    """
    console = recording_console(map(rollout_panel, records), width=100)
    return console.export_html(inline_styles=True, code_format=_PAGE)
