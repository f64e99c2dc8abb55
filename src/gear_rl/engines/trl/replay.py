"""Completions that exist already, through the TRL engine as if the policy had just sampled them.

Everything else is what a training step does: tools are run, rewards are computed, signals and credit too. No
weight changes. This is how the laboratory finds out where a method puts credit on completions with a known fault.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from gear_rl.engines.trl.solve import unnoticed
from gear_rl.engines.trl.state import PassesOf
from gear_rl.engines.trl.trainer_type import Trainer
from gear_rl.records import Record

Turns = Sequence[Sequence[int]]
"""The ids of each turn that a rollout samples, closing tokens included; what tools answer stands between."""
_TOO_FEW = "turns: a rollout calls a tool after its last turn; end it with a turn that calls none"


def replay(
    trainer: Trainer,
    rows: Sequence[Mapping[str, Any]],
    turns: Sequence[Turns],
    *,
    batch: int = 64,
    advance: Callable[[int], None] | None = None,
    passes: PassesOf | None = None,
) -> list[Record]:
    """The record of every rollout, in order; rows of a group stand together, ``num_generations`` of them.

    ``batch`` rollouts go through the engine at a time (a multiple of the group). ``passes`` may know
    some of the signals already. The trainer's metrics and random
    state are left as they were. One process only. ``ValueError`` if the rows do not divide into groups, or if a
    rollout calls a tool after its last turn.

    Of the weights nothing is changed, but a teacher that follows the student is what it is before the first
    step: the student.
    """
    group = int(trainer.num_generations)
    if len(rows) != len(turns) or len(rows) % group:
        raise ValueError(
            f"rows: {len(rows)} rows and {len(turns)} completions; give one completion for each row, in groups "
            f"of {group}"
        )
    if trainer.accelerator.num_processes > 1:
        raise ValueError("replay: runs in one process; start it without accelerate")
    batch = max(group, batch - batch % group)
    records: list[Record] = []
    for begin in range(0, len(rows), batch):
        own = [dict(row) for row in rows[begin : begin + batch]]
        with _serving(trainer, turns[begin : begin + batch]), _recording(trainer, records, passes):
            trainer._generate_and_score_completions(own)
        if advance is not None:
            advance(len(own))
    return records


def prompt_tokens(trainer: Trainer, prompt: Any) -> int:
    """How many tokens the student's prompt has, with the trainer's chat template."""
    return len(trainer._tokenize_prompts([prompt])[0][0])


@contextmanager
def _serving(trainer: Trainer, turns: Sequence[Turns]) -> Generator[None]:
    """While it is open, the policy "samples" the given turns."""
    turn = -1

    def sampled(rollouts: Sequence[int], ids: Sequence[Sequence[int]]) -> list[list[int]]:
        nonlocal turn
        turn += 1
        if any(turn >= len(turns[b]) for b in rollouts):
            raise ValueError(_TOO_FEW)
        return [list(turns[b][turn]) for b in rollouts]

    with serving(trainer, len(turns), sampled), unnoticed(trainer):
        trainer.model.train()  # credit is assigned in training only
        yield


@contextmanager
def serving(
    trainer: Trainer, count: int, sample: Callable[[Sequence[int], Sequence[Sequence[int]]], list[list[int]]]
) -> Generator[None]:
    """While it is open, ``sample`` writes the turns of a batch of ``count`` rollouts in the policy's place.

    It is given which of the rollouts are to go on, and all ids of each so far, prompt and tool answers included.
    ``ValueError`` where TRL goes on with something else than was written.
    """
    active = list(range(count))
    written: list[list[int]] = [[] for _ in active]

    def serve(prompt_ids: list[list[int]], *_: Any, **__: Any) -> tuple[list[list[int]], None]:
        nonlocal active
        # Of those before, the ones whose tools answered; TRL keeps their order.
        waiting, still = iter(active), list[int]()
        for ids in prompt_ids:
            row = next((b for b in waiting if ids[: len(written[b])] == written[b]), None)
            if row is None:
                raise ValueError(_TOO_FEW)
            still.append(row)
        active = still
        sampled = sample(active, prompt_ids)
        for b, ids, new in zip(active, prompt_ids, sampled, strict=True):
            written[b] = [*ids, *new]
        return sampled, None

    trainer._generate_single_turn = serve
    try:
        yield
    finally:
        del trainer._generate_single_turn


@contextmanager
def _recording(trainer: Trainer, records: list[Record], passes: PassesOf | None) -> Generator[None]:
    """While it is open, records go into the list instead of the record file, and ``passes`` is asked first."""
    rollouts = trainer.rollouts
    kept = rollouts.record_sink, rollouts.passes
    rollouts.record_sink, rollouts.passes = records.extend, passes
    try:
        yield
    finally:
        rollouts.record_sink, rollouts.passes = kept
