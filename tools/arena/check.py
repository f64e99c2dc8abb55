"""Checks of a checkpoint: its reward alone and with references, and whether it errs as it was taught."""

import tempfile
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from statistics import correlation, fmean
from types import SimpleNamespace
from typing import Any

import torch

from gear_rl.arena.codebook import problem as codebook
from gear_rl.arena.codes import Belief
from gear_rl.arena.errands import problem as errands
from gear_rl.arena.model import CHAT_TEMPLATE_KWARGS, load, tokens
from gear_rl.arena.task import TEMPLATE, Reference, Task
from gear_rl.credit.teacher_prompts import render
from gear_rl.runs.arena import arena_config
from gear_rl.runs.trl_run import make_trainer
from tools.arena.errands import tools

REFERENCES: tuple[Reference, ...] = ("trace", "answer", "shuffled")


def check(task: Task, folder: Path, tiers: Sequence[str], n: int) -> dict[str, Any]:
    """The mean reward of ``n`` held-out problems of each tier; for a task of codes also the model's beliefs."""
    model, tokenizer = load(folder)
    facts: dict[str, Any] = {}
    for tier in tiers:
        with tempfile.TemporaryDirectory(prefix="gear-arena-") as scratch:
            solver: Any = SimpleNamespace(model=model, processing_class=tokenizer)
            if task.agent:  # its rollouts go through TRL's loop of tools
                config = arena_config(task.name, tier, "uniform", seed=0, steps=1, output_dir=scratch)
                solver = make_trainer(config)
                solver.model.load_state_dict(model.state_dict())
            facts[tier] = {"alone": _solved(task, solver, task.rows(tier, num=n, first_seed=0))}
            for kind in REFERENCES:
                facts[tier][kind] = _solved(task, solver, _informed(task, tier, n, kind))
    if task.name in _TAUGHT:
        facts["beliefs"] = believed(task, model, tokenizer, n)
    return facts


def _solved(task: Task, solver: Any, rows: list[dict[str, Any]]) -> float:
    return fmean(reward or 0.0 for reward in task.solve(solver, rows, seed=0))


def _informed(task: Task, tier: str, n: int, kind: Reference) -> list[dict[str, Any]]:
    """The rows with a reference in the prompt."""
    rows = task.rows(tier, num=n, first_seed=0)
    for seed, row in enumerate(rows):
        context = task.generate(seed, tier).reference(kind, seed) or ""
        row["prompt"] = render(row["prompt"], context, TEMPLATE)
    return rows


_TAUGHT: Mapping[str, tuple[str, Mapping[str, Belief], str, list[Any] | None]] = {
    "codebook": ("k16", codebook.BELIEFS, "symbols", None),
    "errands": ("default", errands.BELIEFS, "items", tools()),
}
"""Tier, taught beliefs, the attribute with a problem's names, and the tools in its prompt."""


@torch.no_grad()
def believed(task: Task, model: Any, tokenizer: Any, n: int) -> dict[str, float]:
    """The model's probabilities of right codes against the taught ones, along right completions.

    `correlation` and `mean_gap` of wanted and actual probabilities, the `lowest` and `highest` actual one, and
    the share of names whose likeliest code is wrong.
    """
    tier, taught, names, listed = _TAUGHT[task.name]
    truth = task.truth_of(tier)
    assert truth is not None
    found: dict[str, list[tuple[float, bool]]] = {}
    for seed, row in enumerate(task.rows(tier, num=n, first_seed=0)):
        problem = task.generate(seed, tier)
        ids = list(chain.from_iterable(tokens(tokenizer, problem.solve())))
        prompt: list[int] = tokenizer.apply_chat_template(
            row["prompt"],
            tools=listed,
            add_generation_prompt=True,
            return_dict=False,
            **CHAT_TEMPLATE_KWARGS,
        )
        logits = model(torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 :]
        for t, decision in enumerate(truth(ids, row, tokenizer).decision):
            if decision >= 0:
                fact = (float(logits[t].softmax(-1)[ids[t]]), int(logits[t].argmax()) == ids[t])
                found.setdefault(getattr(problem, names)[decision], []).append(fact)
    actual = {name: fmean(chance for chance, _ in facts) for name, facts in found.items()}
    wanted = [next(iter(taught[name].values())) for name in actual]
    return {
        "names": len(actual),
        "correlation": correlation(wanted, [*actual.values()]),
        "mean_gap": fmean(abs(one - other) for one, other in zip(wanted, actual.values(), strict=True)),
        "lowest": min(actual.values()),
        "highest": max(actual.values()),
        "wrong_on_top": fmean(fmean(top for _, top in facts) < 0.5 for facts in found.values()),
    }
