"""Measured facts about a checkpoint of "errands": how much it settles right, whether it errs as its table says,
and do signals find the wrong codes."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import copy
from collections.abc import Sequence
from statistics import fmean
from typing import Any

import torch

from gear_rl.arena.calls import success, successes, tokens
from gear_rl.arena.errands import problem as errands
from gear_rl.arena.errands.env import played, tools
from gear_rl.arena.errands.problem import HABITS
from gear_rl.arena.errands.truth import truth
from gear_rl.arena.evaluate import prompt_text
from gear_rl.arena.habits import learned
from gear_rl.arena.ranks import Numbered, Rows, kept_tokens, ranked_signals, ranks_of
from gear_rl.arena.task import Instruments, Reference, TrainerOf

REFERENCES: tuple[Reference, ...] = ("trace", "answer", "shuffled")
"""What a prompt may hold besides the problem when a model is measured with a reference."""


def check(
    model: Any, tokenizer: Any, *, n: int, num_faults: int, tiers: Sequence[str], instruments: Instruments
) -> dict[str, Any]:
    """Facts per tier, from its first `n` held-out problems.

    `sampled`, `greedy` and `sampled_*` (with a reference in the prompt) are mean rewards. `planted` says how well
    each signal ranks the wrong codes of `num_faults` planted faults: the probability that a wrong code has a
    larger value than another token that the model wrote (`auc`) or than a right code (`auc_choices`), 0.5 being
    chance.
    `habits` is the same in all tiers: see `habits_learned`.
    """
    habits = habits_learned(model, tokenizer, n)
    facts: dict[str, Any] = {}
    for tier in tiers:
        text = f"errands ({tier}): {n} held-out problems, alone and with references ..."
        with instruments.trainer_of(model, tokenizer, tier) as trainer, instruments.status(text):
            measured = successes(trainer, errands.rows(tier, num=n, first_seed=0), _contexts(tier, n))
        facts[tier] = {
            "n": n,
            "fingerprint": errands.fingerprint(tier)[:16],
            **measured,
            "planted": _planted(model, tokenizer, tier, num_faults),
            "habits": habits,
        }
    return facts


def success_now(trainer_of: TrainerOf, model: Any, tokenizer: Any) -> float:
    """The mean reward of 64 held-out problems that a model attempts while it is built."""
    # Copies: TRL changes the model's forward and the tokenizer; what is being built must stay as it is.
    model, tokenizer = copy.deepcopy(model), copy.deepcopy(tokenizer)
    with trainer_of(model, tokenizer, "default") as trainer:
        return success(trainer, errands.rows("default", num=64, first_seed=0))


def _contexts(tier: str, n: int) -> dict[str, list[str | None]]:
    problems = [errands.generate(seed, tier) for seed in range(n)]
    return {
        reference: [errands.privileged_context(problem, reference, i) for i, problem in enumerate(problems)]
        for reference in REFERENCES
    }


def _planted(model: Any, tokenizer: Any, tier: str, n: int) -> dict[str, Any]:
    """How well each signal ranks the wrong code of one planted fault per problem."""
    alone: Rows = [{**row, "tools": tools()} for row in errands.rows(tier, num=n, first_seed=0)]
    rows: dict[Reference, Rows] = {}
    for reference in ("trace", "shuffled"):
        shown = _contexts(tier, n)[reference]
        rows[reference] = [
            {**row, "privileged_context": context} for row, context in zip(alone, shown, strict=True)
        ]
    problems = [errands.generate(seed, tier) for seed in range(n)]
    made = [tokens(tokenizer, played(p, errands.plant(p, i)[0])) for i, p in enumerate(problems)]
    numbered: list[Numbered] = [(i, ids) for i, (ids, _) in enumerate(made)]
    kept = kept_tokens(numbered, model.device)
    own, choice, wrong = (torch.zeros_like(kept) for _ in range(3))
    for i, (ids, mask) in enumerate(made):
        facts = truth(ids, alone[i], tokenizer)
        own[i, : len(ids)] = torch.tensor(mask)
        choice[i, : len(ids)] = torch.tensor(facts.decision) >= 0
        wrong[i, : len(ids)] = choice[i, : len(ids)] & ~torch.tensor(facts.right, device=kept.device)
    return ranks_of(ranked_signals(model, tokenizer, rows, numbered, kept), own, choice, wrong)


def habits_learned(model: Any, tokenizer: Any, n: int) -> dict[str, float]:
    """How near the model's probability of each item's right code is to the table that it was taught.

    Without a reference, along the right calls of `n` problems, the mean of each item that occurs: see
    `gear_rl.arena.habits.learned`.
    """
    right: dict[str, list[float]] = {}
    tops: dict[str, list[bool]] = {}
    for seed, row in enumerate(errands.rows(num=n, first_seed=0)):
        problem = errands.generate(seed)
        ids, _ = tokens(tokenizer, played(problem, errands.sends(problem)))
        prompt = tokenizer(prompt_text(tokenizer, {**row, "tools": tools()}))["input_ids"]
        with torch.no_grad():
            logits = model(torch.tensor([prompt + ids], device=model.device)).logits[0, len(prompt) - 1 :]
        for t, decision in enumerate(truth(ids, row, tokenizer).decision):
            if decision >= 0:
                item = problem.items[decision]
                right.setdefault(item, []).append(float(logits[t].softmax(-1)[ids[t]]))
                tops.setdefault(item, []).append(int(logits[t].argmax()) == ids[t])
    return learned(
        HABITS,
        {item: fmean(values) for item, values in right.items()},
        {item: fmean(values) for item, values in tops.items()},
    )
