"""Measured facts about a checkpoint: how often it is right, and do signals find the first wrong token."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from gear_rl.arena import chain
from gear_rl.arena.evaluate import accuracy, prompt_text, sample
from gear_rl.arena.model import EOS
from gear_rl.arena.tiers import TIERS

SIGNALS = ("reverse_kl", "log_ratio", "entropy", "shuffled_kl", "shuffled_log_ratio")


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
    import torch

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

    def scored(level: str, teacher: bool) -> Iterator[Any]:
        prompts = [prompt_text(tokenizer, rows[level][i], teacher=teacher) for i, _ in cut]
        return _log_probs(model, tokenizer, prompts, [ids for _, ids in cut])

    positives: dict[str, list[float]] = {name: [] for name in SIGNALS}
    negatives: dict[str, list[float]] = {name: [] for name in SIGNALS}
    passes = zip(cut, scored("trace", False), scored("trace", True), scored("shuffled", True), strict=True)
    for (_, ids), student, teacher, shuffled in passes:
        p = student.exp()
        values = {
            "reverse_kl": (p * (student - teacher)).sum(-1),
            "log_ratio": (student - teacher)[range(len(ids)), ids],
            "entropy": -(p * student).sum(-1),
            "shuffled_kl": (p * (student - shuffled)).sum(-1),
            "shuffled_log_ratio": (student - shuffled)[range(len(ids)), ids],
        }
        for name, value in values.items():
            positives[name].append(float(value[-1]))
            negatives[name].extend(value[:-1].tolist())
    return {"n": len(cut), **{name: auc(positives[name], negatives[name]) for name in SIGNALS}}


def _log_probs(
    model: Any, tokenizer: Any, prompts: Sequence[str], completions: Sequence[list[int]], batch_size: int = 32
) -> Iterator[Any]:
    """Log-probabilities over the vocabulary of each completion: one row per emitted token."""
    import torch

    prompt_ids: list[list[int]] = [tokenizer(prompt)["input_ids"] for prompt in prompts]
    for first in range(0, len(prompts), batch_size):
        pairs = list(zip(prompt_ids, completions, strict=True))[first : first + batch_size]
        width = max(len(prompt) + len(ids) for prompt, ids in pairs)
        # Padding stands on the right, where a causal model does not look: no attention mask is needed.
        batch = [
            prompt + ids + [tokenizer.pad_token_id] * (width - len(prompt) - len(ids))
            for prompt, ids in pairs
        ]
        with torch.no_grad():
            logits = model(input_ids=torch.tensor(batch, device=model.device)).logits
        for row, (prompt, ids) in zip(logits, pairs, strict=True):
            # The token at a position is predicted one position before.
            yield row[len(prompt) - 1 : len(prompt) - 1 + len(ids)].float().log_softmax(-1)
