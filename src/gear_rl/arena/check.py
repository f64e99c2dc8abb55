"""Measured facts about a checkpoint: how often it is right, and do signals find the first wrong token."""

from __future__ import annotations

from collections.abc import Sequence
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
    high = torch.tensor(positives, dtype=torch.float64)[:, None]
    low = torch.tensor(negatives, dtype=torch.float64)[None, :]
    return float(((high > low).double() + 0.5 * (high == low).double()).mean())


def _auc_of_signals(
    model: Any,
    tokenizer: Any,
    rows: dict[str, list[dict[str, Any]]],
    which: Sequence[int],
    completions: Sequence[str],
    golds: Sequence[str],
) -> dict[str, float]:
    positives: dict[str, list[float]] = {name: [] for name in SIGNALS}
    negatives: dict[str, list[float]] = {name: [] for name in SIGNALS}
    counted = 0
    for i in which:
        ids = tokenizer(completions[i] + EOS)["input_ids"]
        wrong = first_difference(ids, tokenizer(golds[i] + EOS)["input_ids"])
        if wrong is None or wrong >= len(ids):
            continue
        counted += 1
        ids = ids[: wrong + 1]
        student = _log_probs(model, tokenizer, prompt_text(tokenizer, rows["trace"][i]), ids)
        teacher = _log_probs(model, tokenizer, prompt_text(tokenizer, rows["trace"][i], teacher=True), ids)
        shuffled = _log_probs(
            model, tokenizer, prompt_text(tokenizer, rows["shuffled"][i], teacher=True), ids
        )
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
    return {"n": counted, **{name: auc(positives[name], negatives[name]) for name in SIGNALS}}


def _log_probs(model: Any, tokenizer: Any, prompt: str, completion_ids: Sequence[int]) -> Any:
    """Log-probabilities over the vocabulary for each token of a completion, one row per emitted token."""
    import torch

    prompt_ids = tokenizer(prompt)["input_ids"]
    ids = torch.tensor([[*prompt_ids, *completion_ids]], device=model.device)
    with torch.no_grad():
        # One position more than tokens, so that the last prediction, of a token not there, can be dropped.
        logits = model(input_ids=ids, logits_to_keep=len(completion_ids) + 1).logits[0]
    return logits[: len(completion_ids)].float().log_softmax(-1)
