"""Do signals find a planted fault in an episode of the task "ledger"? Measures; tunes nothing."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

import torch
from torch import Tensor

from gear_rl.arena.chain.check import auc, first_difference
from gear_rl.arena.ledger import problem as ledger
from gear_rl.arena.ledger.episodes import Fault, Planted, episode, plant, prompt_ids, tokens
from gear_rl.arena.ledger.problem import Problem
from gear_rl.signals.privileged import TeacherPrompt
from gear_rl.signals.score import Completions, Prompts, left_padded, score
from gear_rl.types import TokenSignals

NEEDS = ("divergence", "student_logprob", "teacher_logprob", "student_entropy")
SIGNALS = ("divergence", "log_ratio", "entropy", "shuffled_divergence")
"""What is looked at; a log-ratio with its sign turned, since the teacher thinks little of a wrong token."""
OnsetOf = Callable[[Tensor, TokenSignals], tuple[Tensor, Tensor]]
"""A method's reading of the advantages, shape (B,), and the signals: the height of every token, and the tokens
that open a segment. The roof passes `Gear().onsets`."""


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
    width = max(len(ids) for ids, _ in encoded)
    pad = tokenizer.pad_token_id

    def padded(rows: list[list[Any]], value: Any) -> Tensor:
        return torch.tensor([row + [value] * (width - len(row)) for row in rows])

    completions = Completions(
        ids=padded([ids for ids, _ in encoded], pad),
        attention=padded([[1] * len(ids) for ids, _ in encoded], 0),
        mask=padded([mask for _, mask in encoded], False),
    )

    def prompts(reference: ledger.Reference) -> Prompts:
        ids = [
            prompt_ids(tokenizer, problem, tier, ledger.privileged_context(problem, reference, seed + i))
            for i, (problem, _) in enumerate(faults)
        ]
        return left_padded([TeacherPrompt(tuple(row)) for row in ids], pad)

    student = prompts("none")
    informed = score(model, completions, student, prompts("trace"), needs=NEEDS, batch_size=32)
    blind = score(model, completions, student, prompts("shuffled"), needs=NEEDS, batch_size=32)
    values = {
        "divergence": informed.get("divergence"),
        "log_ratio": informed.get("student_logprob") - informed.get("teacher_logprob"),
        "entropy": informed.get("student_entropy"),
        "shuffled_divergence": blind.get("divergence"),
    }
    mask, turn_id = informed.mask, informed.turn_id
    assert turn_id is not None
    faulty = torch.tensor([planted.turn for _, planted in faults])

    def share(value: Tensor, among: Tensor) -> float:
        """How often the largest value among some tokens lies in the faulty turn."""
        top = torch.where(among, value, -torch.inf).argmax(-1, keepdim=True)
        hit = (turn_id.gather(-1, top)[:, 0] == faulty) & among.any(-1)
        return float(hit.float().mean())

    failed_B = -torch.ones(len(faults))
    first = torch.zeros_like(mask)
    for row, ((problem, _), (ids, _)) in enumerate(zip(faults, encoded, strict=True)):
        wrong = first_difference(ids, tokens(tokenizer, episode(problem).messages)[0])
        assert wrong is not None
        first[row, wrong] = True
    return {
        "n": len(faults),
        "chance": float((1 / (turn_id.max(-1).values + 1)).mean()),
        "onset": share(values["divergence"], onset_of(failed_B, informed)[1]),
        "shuffled_onset": share(values["shuffled_divergence"], onset_of(failed_B, blind)[1]),
        **{name: share(value, mask) for name, value in values.items()},
        "auc": {
            name: auc(value[first].tolist(), value[mask & ~first].tolist()) for name, value in values.items()
        },
    }


def _plant(tier: str, n: int, seed: int, kind: Fault) -> list[tuple[Problem, Planted]]:
    """The first `n` held-out problems in which a fault can be planted, with the fault."""
    found: list[tuple[Problem, Planted]] = []
    for problem_seed in ledger.HELD_OUT:
        problem = ledger.generate(problem_seed, tier)
        try:
            found.append((problem, plant(problem, seed + problem_seed, kind)))
        except ValueError:
            continue
        if len(found) == n:
            return found
    raise ValueError(f"n: {n} is not possible; faults fit into {len(found)} held-out problems of {tier!r}")
