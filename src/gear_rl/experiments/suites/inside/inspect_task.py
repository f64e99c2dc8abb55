"""A task of inspect-evals on rows of a local file; run by ``inspect eval`` in the environment of that tool.

Solver, prompt, scorer and version are the task's own: only what it would load from a model hub is read from the
files. Imports nothing of gear_rl, which is not there.
"""

import importlib
import inspect
from typing import Any
from unittest import mock

from inspect_ai import Task, task, task_with
from inspect_ai.dataset import json_dataset


@task
def local(
    folder: str, suite: str, rows: str, examples: str = "", settings: dict[str, Any] | None = None
) -> Task:
    """The task ``suite`` of ``folder``: what it tests on from the file ``rows``, its examples from ``examples``.

    Without a file of examples a task shows none, unless ``settings`` say how many. ``ValueError`` for a task that
    reads nothing from a hub, and for examples that are nowhere.
    """

    def from_file(*args: Any, **kwargs: Any) -> Any:
        split = kwargs.get("split")
        file = examples if split == "train" else rows
        if not file:
            raise ValueError(f"{suite} shows examples from the split {split!r}: give --examples FILE")
        kept = {
            name: kwargs[name] for name in ("sample_fields", "shuffle", "seed", "limit") if name in kwargs
        }
        return json_dataset(file, **kept)

    make = getattr(importlib.import_module(f"inspect_evals.{folder}"), suite)
    module = importlib.import_module(inspect.unwrap(make).__module__)
    if not hasattr(module, "hf_dataset"):
        raise ValueError(f"{suite} does not read its rows with hf_dataset: --data cannot take their place")
    chosen = dict(settings or {})
    if not examples and "fewshot" in inspect.signature(make).parameters:
        chosen.setdefault("fewshot", 0)
    with mock.patch.object(module, "hf_dataset", from_file):
        return task_with(make(**chosen), name=suite)
