"""Mistakes that the arena's model makes itself, after some steps of training, for ``gear score --trained``.

A planted mistake is one that the model did not draw. What credit does on those that it draws, and keeps drawing
as it improves, is another question.
"""

import copy
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from tempfile import TemporaryDirectory
from typing import Any

from gear_rl.arena.task import HELD_OUT, Case, Task, TruthOf
from gear_rl.errors import InputError
from gear_rl.lab.material import Material, Pair, arena_material
from gear_rl.lab.sampling import sample
from gear_rl.lab.training import QUIET
from gear_rl.rollouts import RolloutBatch
from gear_rl.runs.arena import arena_config, task_of
from gear_rl.runs.trl_run import make_trainer
from gear_rl.tensor.lists import int_list

SEED = 0
"""Of the training and of the sampling."""


def own_mistakes(task: str, tier: str, n: int, steps: int) -> Material:
    """Held-out problems, each with a completion that the model got wrong after ``steps`` of GRPO.

    The fault is every wrong decision (`Truth.mistakes`). The teacher has the first weights, as that of a run with
    ``teacher_model_kind: base``. Problems that the model solves in each of a group's rollouts are left out.
    ``InputError`` for a tier whose truth no formula gives, and where nothing is left.
    """
    of = task_of(task, tier)
    truth_of = of.truth_of(tier)
    if truth_of is None:
        raise InputError(
            f"--trained: no formula says which tokens of {of.name}/{tier} are wrong; leave it out"
        )
    planted = arena_material(task, tier, n)
    with TemporaryDirectory() as folder:
        trainer = make_trainer(
            arena_config(task, tier, "uniform", seed=SEED, steps=steps, output_dir=folder, **QUIET)
        )
        if steps:
            trainer.train()
        failures = _failures(trainer, of, tier, truth_of, planted.pairs)
    if not failures:
        raise InputError(
            f"--trained: after {steps} steps the model solves all {n} problems; give fewer steps"
        )
    return replace(
        planted,
        engine=replace(planted.engine, model=trainer.model, teacher_model=planted.engine.model),
        pairs=[*failures.values()],
        blind=[_with_solution_of(planted.blind[i], pair) for i, pair in failures.items()],
        about=planted.about
        | {
            "what": "absolute credit on completions of the model's own; the fault is what is wrong in them",
            "trained": steps,
            "n": len(failures),
        },
    )


def _failures(
    trainer: Any, task: Task, tier: str, truth_of: TruthOf, planted: Sequence[Pair]
) -> dict[int, Pair]:
    """By the number of the problem: the first of its group's rollouts with a mistake, beside a right one."""
    each = int(trainer.num_generations)
    at_once = max(1, trainer.args.per_device_train_batch_size // each)
    rows = task.rows(tier, num=len(planted), first_seed=HELD_OUT.start)
    found: dict[int, Pair] = {}
    for start in range(0, len(rows), at_once):
        batch = sample(trainer, rows[start : start + at_once], seed=SEED + start)
        for b in range(len(batch.rows)):
            number = start + b // each
            if number not in found:
                pair = _failure(batch, b, task, truth_of, trainer.processing_class, planted[number])
                found |= {} if pair is None else {number: pair}
    return found


def _failure(
    batch: RolloutBatch, b: int, task: Task, truth_of: TruthOf, tokenizer: Any, planted: Pair
) -> Pair | None:
    """Rollout ``b`` in place of the one with the planted fault; None where nothing is wrong in it."""
    kept = batch.completions.attention[b].bool()
    ids, own = int_list(batch.completions.ids[b][kept]), int_list(batch.completions.mask[b][kept])
    mistakes = truth_of(ids, batch.rows[b], tokenizer).mistakes
    if not mistakes:
        return None
    tokens = iter(ids)
    turns = [[next(tokens) for _ in turn] for _, turn in groupby(own)]
    case = Case(
        row=planted.row,
        faulty=turns,
        right=planted.case.right,
        fault=mistakes,
        choices=task.choices_of(turns, tokenizer),
    )
    environments = None
    if batch.environments is not None and planted.environments is not None:
        # The trainer uses its environments again for the next rollouts.
        environments = copy.deepcopy(batch.environments[b]), planted.environments[1]
    messages = batch.messages[b], planted.messages[1]
    return Pair(case=case, row=planted.row, messages=messages, environments=environments)


def _with_solution_of(other: Pair, pair: Pair) -> Pair:
    """The pair for a teacher that sees what it sees in ``other``."""
    return replace(other, case=replace(pair.case, row=other.row), messages=pair.messages)
