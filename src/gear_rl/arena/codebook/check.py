"""Measured facts about a checkpoint of "codebook": how often it is right, whether it errs as its table says, and
do signals find the wrong codes."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import torch

from gear_rl.arena.codebook import problem as codebook
from gear_rl.arena.codebook.book import HABITS
from gear_rl.arena.codebook.tiers import MOST_SYMBOLS, TIERS, Tier
from gear_rl.arena.codebook.truth import truth
from gear_rl.arena.evaluate import accuracy, sample
from gear_rl.arena.habits import learned
from gear_rl.arena.model import EOS
from gear_rl.arena.ranks import Numbered, Rows, kept_tokens, ranked_signals, ranks_of, scored
from gear_rl.arena.task import Reference

REFERENCES: tuple[Reference, ...] = ("trace", "answer", "shuffled")
"""What a prompt may hold besides the problem when a model is measured with a reference."""
MAX_NEW_TOKENS = max(tier.num_tokens for tier in TIERS.values()) + 16
"""Where sampling stops when a completion does not end by itself."""
HABIT_TIER = Tier(symbols=MOST_SYMBOLS // 2)
"""Problems on which the table of habits is measured."""


def check(
    model: Any, tokenizer: Any, n: int = 256, tiers: Sequence[str] = tuple(TIERS), seed: int = 0
) -> dict[str, Any]:
    """Facts per tier, from its first `n` held-out problems.

    `sampled`, `greedy` and `sampled_*` (with a reference in the prompt) are shares of right codes, whatever the
    tier pays; `reward` is what it pays. `on_policy` and `planted` say how well each signal ranks wrong codes, in
    sampled completions and in planted faults: the probability that a wrong code has a larger value than another
    token (`auc`) or than a right code (`auc_choices`), 0.5 being chance. `habits` is the same in all tiers: see
    `habits_learned`.
    """
    habits = habits_learned(model, tokenizer, n)
    return {tier: {**_tier_facts(model, tokenizer, tier, n, seed), "habits": habits} for tier in tiers}


def share(
    model: Any, tokenizer: Any, rows: Rows, *, teacher: bool = False, greedy: bool = False, seed: int = 0
) -> float:
    """The share of codes that are right in one completion per row, whatever the tier pays."""
    return fmean(
        accuracy(
            model,
            tokenizer,
            rows,
            _shares,
            teacher=teacher,
            greedy=greedy,
            seed=seed,
            max_new_tokens=MAX_NEW_TOKENS,
        )
    )


def _shares(completions: Sequence[str], answer: Sequence[str], **_: Any) -> list[float]:
    return [*map(codebook.share_right, completions, answer)]


def _tier_facts(model: Any, tokenizer: Any, tier: str, n: int, seed: int) -> dict[str, Any]:
    rows: dict[Reference, Rows] = {
        level: codebook.rows(tier, num=n, reference=level, first_seed=0) for level in REFERENCES
    }
    answers = [row["answer"] for row in rows["trace"]]
    texts = sample(model, tokenizer, rows["trace"], seed=seed, max_new_tokens=MAX_NEW_TOKENS)
    planted = [codebook.plant(codebook.generate(i, tier), i).completion for i in range(n)]
    return {
        "n": n,
        "fingerprint": codebook.fingerprint(tier)[:16],
        "reward": fmean(codebook.codebook_reward(texts, answers)),
        "sampled": fmean(map(codebook.share_right, texts, answers)),
        "greedy": share(model, tokenizer, rows["trace"], greedy=True),
        **{
            f"sampled_{level}": share(model, tokenizer, rows[level], teacher=True, seed=seed)
            for level in rows
        },
        "on_policy": _aucs(model, tokenizer, rows, texts),
        "planted": _aucs(model, tokenizer, rows, planted),
    }


def _aucs(model: Any, tokenizer: Any, rows: Mapping[Reference, Rows], texts: Sequence[str]) -> dict[str, Any]:
    """How well each signal ranks the wrong codes of one completion per problem; `n` is how many there are."""
    numbered: list[Numbered] = [(i, tokenizer(text + EOS)["input_ids"]) for i, text in enumerate(texts)]
    kept = kept_tokens(numbered, model.device)
    choice, wrong = torch.zeros_like(kept), torch.zeros_like(kept)
    for i, ids in numbered:
        facts = truth(ids, rows["trace"][i], tokenizer)
        choice[i, : len(ids)] = torch.tensor(facts.decision, device=kept.device) >= 0
        wrong[i, : len(ids)] = choice[i, : len(ids)] & ~torch.tensor(facts.right, device=kept.device)
    values = ranked_signals(model, tokenizer, rows, numbered, kept)
    return ranks_of(values, kept, choice, wrong)


def habits_learned(model: Any, tokenizer: Any, n: int) -> dict[str, float]:
    """How near the model's probability of each symbol's right code is to the table that it was taught.

    Without a reference, along right completions of `n` problems, the mean of each symbol that occurs: see
    `gear_rl.arena.habits.learned`.
    """
    rows = codebook.rows(HABIT_TIER, num=n, first_seed=0)
    right = _right_probabilities(model, tokenizer, rows)
    tops = _tops(sample(model, tokenizer, rows, greedy=True, max_new_tokens=MAX_NEW_TOKENS), rows)
    return learned(HABITS, right, tops)


def _right_probabilities(model: Any, tokenizer: Any, rows: Rows) -> dict[str, float]:
    """The mean probability of each symbol's right code, along the right completions of the rows."""
    numbered: list[Numbered] = [
        (i, tokenizer(row["privileged_context"] + EOS)["input_ids"]) for i, row in enumerate(rows)
    ]
    kept = kept_tokens(numbered, model.device)
    signals = scored(model, tokenizer, rows, numbered, kept, needs=("student_logprob",))
    probability = signals.get("student_logprob").exp()
    found: dict[str, list[float]] = {}
    for i, ids in numbered:
        symbols = [*codebook.wanted(rows[i]["answer"])]
        for t, decision in enumerate(truth(ids, rows[i], tokenizer).decision):
            if decision >= 0:
                found.setdefault(symbols[decision], []).append(float(probability[i, t]))
    return {symbol: fmean(values) for symbol, values in found.items()}


def _tops(greedy: Sequence[str], rows: Rows) -> dict[str, float]:
    """How often each symbol's likeliest code is right; a symbol left out counts as wrong."""
    found: dict[str, list[bool]] = {}
    for text, row in zip(greedy, rows, strict=True):
        taken = {decision.index: decision.right for decision in codebook.decisions(text, row["answer"])}
        for i, symbol in enumerate(codebook.wanted(row["answer"])):
            found.setdefault(symbol, []).append(taken.get(i, False))
    return {symbol: fmean(values) for symbol, values in found.items()}
