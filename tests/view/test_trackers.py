"""Trackers get the completions of logged steps, coloured, and no privileged context."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from gear_rl.view.trackers import track_credit
from support.records import record


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What a stand-in for wandb logs: the library is no dependency of the tests."""
    entries: list[dict[str, Any]] = []
    wandb: Any = ModuleType("wandb")
    wandb.log, wandb.Html = entries.append, str
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    return entries


def trainer_with(**changes: Any) -> Any:
    args = {"report_to": ["wandb", "tensorboard"], "num_completions_to_print": None}
    return SimpleNamespace(
        args=SimpleNamespace(**args | changes), state=SimpleNamespace(logging_steps=2), record_subscribers=[]
    )


def publish(trainer: Any, steps: int) -> None:
    for step in range(1, steps + 1):
        rows = [record(step=step, tokens=[f" row{n}", "<b>", " t"]) for n in range(3)]
        rows[0] = record(step=step, tokens=[" row0", "<b>", " t"], teacher_prompt="privileged", context="row")
        for subscriber in trainer.record_subscribers:
            subscriber(rows)


def test_a_page_for_every_logged_step(logged: list[dict[str, Any]]):
    trainer = trainer_with()
    track_credit(trainer)
    publish(trainer, 5)
    pages = [entry["gear/completions"] for entry in logged]
    assert ["step 2" in pages[0], "step 4" in pages[1], len(pages)] == [True, True, 2]
    assert all(f"row{n}" in pages[0] for n in range(3))
    assert "background-color: #" in pages[0]
    assert "&lt;b&gt;" in pages[0] and "<b>" not in pages[0]
    assert "privileged" not in pages[0]


def test_as_many_completions_as_the_setting_says(logged: list[dict[str, Any]]):
    trainer = trainer_with(num_completions_to_print=1)
    track_credit(trainer)
    publish(trainer, 2)
    assert "row0" in logged[0]["gear/completions"] and "row1" not in logged[0]["gear/completions"]


def test_no_subscriber_where_no_tracker_shows_pages():
    trainer = trainer_with(report_to=["tensorboard"])
    track_credit(trainer)
    assert trainer.record_subscribers == []
