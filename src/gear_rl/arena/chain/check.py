"""Measured facts about a checkpoint: how often it is right, and do signals find the first wrong token."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gear_rl.arena.chain import problem as chain
from gear_rl.arena.evaluate import accuracy, prompt_text, sample
from gear_rl.arena.model import EOS
from gear_rl.arena.tiers import TIERS
from gear_rl.signals.privileged import TeacherPrompt
from gear_rl.signals.score import Completions, Prompts, left_padded, score
from gear_rl.types import TokenSignals

SIGNALS = ("divergence", "log_ratio", "entropy", "shuffled_divergence", "shuffled_log_ratio")
"""What is ranked; a log-ratio with its sign turned, since the teacher thinks little of a wrong token."""
NEEDS = ("divergence", "student_logprob", "teacher_logprob", "student_entropy")


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
    rows = {
        level: chain.rows(tier, num=n, reference=level, first_seed=0)
        for level in ("trace", "answer", "shuffled")
    }
    problems = [chain.generate(i, tier) for i in range(n)]
    completions = sample(model, tokenizer, rows["trace"], seed=seed)
    golds = [chain.solve(problem).trace for problem in problems]
    reward = chain.chain_reward(completions, [row["answer"] for row in rows["trace"]])

    def mean(values: Sequence[float]) -> float:
        return sum(values) / len(values)

    facts: dict[str, Any] = {
        "n": n,
        "fingerprint": chain.fingerprint(tier)[:16],
        "sampled": mean(reward),
        "greedy": mean(accuracy(model, tokenizer, rows["trace"], greedy=True)),
    }
    for level, referenced in rows.items():
        facts[f"sampled_{level}"] = mean(accuracy(model, tokenizer, referenced, teacher=True, seed=seed))
    failed = [i for i in range(n) if reward[i] == 0.0]
    planted = [chain.plant(problem, i).completion for i, problem in enumerate(problems)]
    facts["on_policy"] = _auc_of_signals(model, tokenizer, rows, failed, completions, golds)
    facts["planted"] = _auc_of_signals(model, tokenizer, rows, list(range(n)), planted, golds)
    return facts


def first_difference(ids: Sequence[int], gold: Sequence[int]) -> int | None:
    """The first position at which `ids` leaves `gold`; None if it never does.

    >>> first_difference([5, 6, 7], [5, 6, 8, 9])
    2
    """
    for position, (one, other) in enumerate(zip(ids, gold, strict=False)):
        if one != other:
            return position
    return None if len(ids) >= len(gold) else len(ids)


def auc(positives: Sequence[float], negatives: Sequence[float]) -> float:
    """The chance that a positive is larger than a negative, ties counting half; NaN without either.

    >>> auc([3.0, 2.0], [1.0, 2.0])
    0.875
    """
    if not positives or not negatives:
        return float("nan")
    high = torch.tensor(positives, dtype=torch.float64)
    low = torch.tensor(negatives, dtype=torch.float64).sort().values
    below = torch.searchsorted(low, high, side="left") + torch.searchsorted(low, high, side="right")
    return float(below.double().mean()) / (2 * len(negatives))


def _auc_of_signals(
    model: Any,
    tokenizer: Any,
    rows: dict[str, list[dict[str, Any]]],
    which: Sequence[int],
    completions: Sequence[str],
    golds: Sequence[str],
) -> dict[str, float]:
    cut: list[tuple[int, list[int]]] = []
    """Which problem, and its completion up to and including the first wrong token."""
    for i in which:
        ids = tokenizer(completions[i] + EOS)["input_ids"]
        wrong = first_difference(ids, tokenizer(golds[i] + EOS)["input_ids"])
        if wrong is not None and wrong < len(ids):
            cut.append((i, ids[: wrong + 1]))

    if not cut:
        return {"n": 0, **dict.fromkeys(SIGNALS, float("nan"))}
    width = max(len(ids) for _, ids in cut)
    kept = torch.tensor([[t < len(ids) for t in range(width)] for _, ids in cut], device=model.device)
    padded = [ids + [tokenizer.pad_token_id] * (width - len(ids)) for _, ids in cut]
    completions_cut = Completions(
        ids=torch.tensor(padded, device=model.device), attention=kept.long(), mask=kept
    )

    def prompts(level: str, teacher: bool) -> Prompts:
        texts = [prompt_text(tokenizer, rows[level][i], teacher=teacher) for i, _ in cut]
        ids = [TeacherPrompt(tuple(tokenizer(text)["input_ids"])) for text in texts]
        return left_padded(ids, tokenizer.pad_token_id, model.device)

    def scored(level: str) -> TokenSignals:
        student, teacher = prompts(level, teacher=False), prompts(level, teacher=True)
        return score(model, completions_cut, student, teacher, needs=NEEDS, batch_size=32)

    informed, blind = scored("trace"), scored("shuffled")
    values = {
        "divergence": informed.get("divergence"),
        "log_ratio": _log_ratio(informed),
        "entropy": informed.get("student_entropy"),
        "shuffled_divergence": blind.get("divergence"),
        "shuffled_log_ratio": _log_ratio(blind),
    }
    last = kept & ~torch.nn.functional.pad(kept[:, 1:], (0, 1))
    found = {name: auc(value[last].tolist(), value[kept & ~last].tolist()) for name, value in values.items()}
    return {"n": len(cut), **found}


def _log_ratio(signals: TokenSignals) -> Tensor:
    """How much less the teacher thinks of the sampled token: the log-ratio with its sign turned."""
    return signals.get("student_logprob") - signals.get("teacher_logprob")
