"""Measured facts about a checkpoint of "ledger": success, and do signals find a planted fault? Tunes nothing."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import torch
from torch import Tensor

from gear_rl.arena.calls import success, successes, tokens
from gear_rl.arena.faults import auc, first_difference, first_planted
from gear_rl.arena.ledger import problem as ledger
from gear_rl.arena.ledger.episodes import Fault, Planted, episode, plant, prompt_ids
from gear_rl.arena.ledger.problem import Problem
from gear_rl.arena.task import HELD_OUT, Instruments, Reference, TrainerOf
from gear_rl.signals.privileged import TeacherPrompt
from gear_rl.signals.score import Completions, Prompts, left_padded, score
from gear_rl.types import TokenSignals

REFERENCES: tuple[Reference, ...] = ("trace", "answer", "shuffled")
"""What a prompt may hold besides the problem when a model is measured with a reference."""
NEEDS = ("divergence", "student_logprob", "teacher_logprob", "student_entropy")
SIGNALS = ("divergence", "log_ratio", "entropy", "shuffled_divergence")
"""What is looked at; a log-ratio with its sign turned, since the teacher thinks little of a wrong token."""
OnsetOf = Callable[[Tensor, TokenSignals], tuple[Tensor, Tensor]]
"""A method's reading of the advantages, shape (B,), and the signals: the height of every token, and the tokens
that open a segment. The command line passes `Gear().onsets`."""


def check(
    model: Any, tokenizer: Any, *, n: int, num_faults: int, tiers: Sequence[str], instruments: Instruments
) -> dict[str, Any]:
    """Success with and without a reference, and whether a method's onsets find the turn of a planted fault."""
    facts: dict[str, Any] = {}
    for tier in tiers:
        text = f"ledger ({tier}): {n} held-out problems, alone and with references ..."
        with instruments.trainer_of(model, tokenizer, tier) as trainer, instruments.status(text):
            measured = _successes(trainer, tier, n)
        with instruments.status(f"ledger ({tier}): {num_faults} planted faults of each kind ..."):
            measured["planted"] = localisation(
                model, tokenizer, tier, n=num_faults, onset_of=instruments.onset_of
            )
        facts[tier] = measured
    return facts


def _successes(trainer: Any, tier: str, n: int) -> dict[str, Any]:
    problems = [ledger.generate(seed, tier) for seed in range(n)]
    contexts = {
        reference: [ledger.privileged_context(problem, reference, i) for i, problem in enumerate(problems)]
        for reference in REFERENCES
    }
    alone = ledger.rows(tier, num=n, reference="none", first_seed=0)
    return {
        "n": n,
        "fingerprint": ledger.fingerprint(tier, n)[:16],
        **successes(trainer, alone, contexts),
    }


def success_now(trainer_of: TrainerOf, model: Any, tokenizer: Any) -> float:
    """The share of 128 held-out problems that a model solves while it is built."""
    # Copies: TRL changes the model's forward and the tokenizer; what is being built must stay as it is.
    model, tokenizer = copy.deepcopy(model), copy.deepcopy(tokenizer)
    with trainer_of(model, tokenizer, "default") as trainer:
        return success(trainer, ledger.rows("default", num=128, first_seed=0))


def localisation(
    model: Any, tokenizer: Any, tier: str = "default", n: int = 200, seed: int = 0, *, onset_of: OnsetOf
) -> dict[str, Any]:
    """How often each signal points at the turn of a planted fault, for each kind of fault.

    `onset` is the share of episodes whose onset of largest divergence lies in the faulty turn, and
    `shuffled_onset` the same with a teacher that was shown another problem's calls; no onset is a miss. The
    other shares are those of the token at which a signal is largest: entropy needs no teacher, the log-ratio
    is that of the sampled tokens. `chance` is a guess among the turns. `auc` ranks the first wrong token among
    all trained tokens of its kind's episodes. Held-out problems in which no fault can be planted are passed
    over.
    """
    return {kind: _facts(model, tokenizer, tier, n, seed, kind, onset_of) for kind in get_args(Fault)}


def _facts(
    model: Any, tokenizer: Any, tier: str, n: int, seed: int, kind: Fault, onset_of: OnsetOf
) -> dict[str, Any]:
    faults = _plant(tier, n, seed, kind)
    encoded = [tokens(tokenizer, planted.messages) for _, planted in faults]
    scored = _score(model, tokenizer, tier, seed, faults, encoded)
    mask, turn_id = scored.informed.mask, scored.informed.turn_id
    assert turn_id is not None
    faulty = torch.tensor([planted.turn for _, planted in faults])

    def share(value: Tensor, among: Tensor) -> float:
        """How often the largest value among some tokens lies in the faulty turn."""
        top = torch.where(among, value, -torch.inf).argmax(-1, keepdim=True)
        hit = (turn_id.gather(-1, top)[:, 0] == faulty) & among.any(-1)
        return float(hit.float().mean())

    failed_B = -torch.ones(len(faults))
    first = _first_wrong(tokenizer, faults, encoded, mask)
    values = scored.values
    return {
        "n": len(faults),
        "chance": float((1 / (turn_id.max(-1).values + 1)).mean()),
        "onset": share(values["divergence"], onset_of(failed_B, scored.informed)[1]),
        "shuffled_onset": share(values["shuffled_divergence"], onset_of(failed_B, scored.blind)[1]),
        **{name: share(value, mask) for name, value in values.items()},
        "auc": {
            name: auc(value[first].tolist(), value[mask & ~first].tolist()) for name, value in values.items()
        },
    }


Faults = list[tuple[Problem, Planted]]
Encoded = list[tuple[list[int], list[bool]]]
"""The ids of each episode, and which of them the assistant emitted."""


def _plant(tier: str, n: int, seed: int, kind: Fault) -> Faults:
    """The first `n` held-out problems in which a fault can be planted, with the fault."""

    def planted(problem_seed: int) -> tuple[Problem, Planted]:
        problem = ledger.generate(problem_seed, tier)
        return problem, plant(problem, seed + problem_seed, kind)

    return first_planted(planted, HELD_OUT, n, tier)


@dataclass(frozen=True, slots=True)
class _Scored:
    """The signals of the episodes, with a teacher shown the right calls and with one shown others."""

    informed: TokenSignals
    blind: TokenSignals

    @property
    def values(self) -> dict[str, Tensor]:
        """What is looked at, by name."""
        return {
            "divergence": self.informed.get("divergence"),
            "log_ratio": self.informed.get("student_logprob") - self.informed.get("teacher_logprob"),
            "entropy": self.informed.get("student_entropy"),
            "shuffled_divergence": self.blind.get("divergence"),
        }


def _score(model: Any, tokenizer: Any, tier: str, seed: int, faults: Faults, encoded: Encoded) -> _Scored:
    width = max(len(ids) for ids, _ in encoded)
    pad = tokenizer.pad_token_id

    def padded(rows: list[list[Any]], value: Any) -> Tensor:
        return torch.tensor([row + [value] * (width - len(row)) for row in rows])

    completions = Completions(
        ids=padded([ids for ids, _ in encoded], pad),
        attention=padded([[1] * len(ids) for ids, _ in encoded], 0),
        mask=padded([mask for _, mask in encoded], False),
    )

    def prompts(reference: Reference) -> Prompts:
        ids = [
            prompt_ids(tokenizer, problem, tier, ledger.privileged_context(problem, reference, seed + i))
            for i, (problem, _) in enumerate(faults)
        ]
        return left_padded([TeacherPrompt(tuple(row)) for row in ids], pad)

    student = prompts("none")
    informed = score(model, completions, student, prompts("trace"), needs=NEEDS, batch_size=32)
    blind = score(model, completions, student, prompts("shuffled"), needs=NEEDS, batch_size=32)
    return _Scored(informed, blind)


def _first_wrong(tokenizer: Any, faults: Faults, encoded: Encoded, mask: Tensor) -> Tensor:
    """True on the first token at which each episode leaves the right one."""
    first = torch.zeros_like(mask)
    for row, ((problem, _), (ids, _)) in enumerate(zip(faults, encoded, strict=True)):
        wrong = first_difference(ids, tokens(tokenizer, episode(problem).messages)[0])
        assert wrong is not None
        first[row, wrong] = True
    return first
