"""Measured facts about a checkpoint of "chain": how often it is right, and do signals find a wrong token."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from gear_rl.arena.chain import problem as chain
from gear_rl.arena.chain.tiers import TIERS
from gear_rl.arena.evaluate import accuracy, sample
from gear_rl.arena.faults import auc, first_difference
from gear_rl.arena.model import EOS
from gear_rl.arena.ranks import SIGNALS, Numbered, Rows, kept_tokens, ranked_signals
from gear_rl.arena.task import Reference

REFERENCES: tuple[Reference, ...] = ("trace", "answer", "shuffled")
"""What a prompt may hold besides the problem when a model is measured with a reference."""


def check(
    model: Any,
    tokenizer: Any,
    n: int = 256,
    tiers: Sequence[str] = tuple(TIERS),
    seed: int = 0,
) -> dict[str, Any]:
    """Accuracies per tier and prompt, and per tier how well each signal ranks the first wrong token.

    `auc` is the probability that the first wrong token of a failed completion has a larger value than a
    token before it, pooled over completions; 0.5 is chance. Failed on-policy samples and planted faults
    are counted apart, each with its number of completions. Entropy (no teacher) and the shuffled
    reference (a teacher that knows nothing) are the controls.
    """
    return {tier: _tier_facts(model, tokenizer, tier, n, seed) for tier in tiers}


def _tier_facts(model: Any, tokenizer: Any, tier: str, n: int, seed: int) -> dict[str, Any]:
    rows: dict[Reference, Rows] = {
        level: chain.rows(tier, num=n, reference=level, first_seed=0) for level in REFERENCES
    }
    problems = [chain.generate(i, tier) for i in range(n)]
    completions = sample(model, tokenizer, rows["trace"], seed=seed)
    golds = [chain.solve(problem).trace for problem in problems]
    reward = chain.chain_reward(completions, [row["answer"] for row in rows["trace"]])

    def solved(of: Rows, **choice: Any) -> float:
        return _mean(accuracy(model, tokenizer, of, chain.chain_reward, **choice))

    facts: dict[str, Any] = {
        "n": n,
        "fingerprint": chain.fingerprint(tier)[:16],
        "sampled": _mean(reward),
        "greedy": solved(rows["trace"], greedy=True),
    }
    for level, referenced in rows.items():
        facts[f"sampled_{level}"] = solved(referenced, teacher=True, seed=seed)
    failed = [i for i in range(n) if reward[i] == 0.0]
    planted = [chain.plant(problem, i).completion for i, problem in enumerate(problems)]
    facts["on_policy"] = _auc_of_signals(model, tokenizer, rows, failed, completions, golds)
    facts["planted"] = _auc_of_signals(model, tokenizer, rows, list(range(n)), planted, golds)
    return facts


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _auc_of_signals(
    model: Any,
    tokenizer: Any,
    rows: Mapping[Reference, Rows],
    which: Sequence[int],
    completions: Sequence[str],
    golds: Sequence[str],
) -> dict[str, float]:
    """How well each signal ranks the first wrong token of the completions `which` among those before it."""
    cut: list[Numbered] = []
    """Completions up to and including the first wrong token."""
    for i in which:
        ids = tokenizer(completions[i] + EOS)["input_ids"]
        wrong = first_difference(ids, tokenizer(golds[i] + EOS)["input_ids"])
        if wrong is not None and wrong < len(ids):
            cut.append((i, ids[: wrong + 1]))
    if not cut:
        return {"n": 0, **dict.fromkeys(SIGNALS, float("nan"))}
    kept = kept_tokens(cut, model.device)
    last = kept & ~torch.nn.functional.pad(kept[:, 1:], (0, 1))
    values = ranked_signals(model, tokenizer, rows, cut, kept)
    aucs = {name: auc(value[last].tolist(), value[kept & ~last].tolist()) for name, value in values.items()}
    return {"n": len(cut), **aucs}
