"""Makes the checkpoint of the task "codebook" from nothing: a student that knows each code to its own degree.

Demonstrations without a reference give each code with the probabilities of the table `HABITS`; where the
problem's reference is shown they follow it, also where it is wrong, so that it is read and not remembered. The
student then errs as the table says, and the same weights shown the reference hardly ever: a teacher.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gear_rl.arena.codebook import problem as codebook
from gear_rl.arena.codebook.book import FILLER, HABITS, RIGHT, SYMBOLS
from gear_rl.arena.codebook.problem import DOT, LEAD, Problem
from gear_rl.arena.codebook.tiers import MOST_FILLER, MOST_SYMBOLS, Tier
from gear_rl.arena.evaluate import accuracy
from gear_rl.arena.habits import CODES, drawn
from gear_rl.arena.model import build_model, build_tokenizer, save
from gear_rl.arena.task import FIRST_TRAIN_SEED, Reference
from gear_rl.arena.training import (
    Report,
    competence_optimizers,
    demonstration_batches,
    habit_optimizers,
    one_thread,
    train,
)

ATOMS = (LEAD, f" {DOT}", *(f" {word}" for word in (*SYMBOLS, *CODES, *FILLER)))
"""One decision is one token: a symbol, a code and an irrelevant word each are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How long and how hard each stage trains. Defaults chosen by measurement, for one CPU core."""

    copy_steps: int = 300
    """The first steps of stage 1: every problem with its own reference, every code of it any code. Together with
    the habits reading did not appear in 1100 steps: the model looked which codes the reference has, not where."""
    steps: int = 900
    """Stage 1: to copy symbols, to read a reference, and the habits."""
    short_steps: int = 60
    """The first steps, with three symbols at most."""
    grow_steps: int = 10
    """Then the longest problem grows by one symbol every so many steps."""
    longest: int = MOST_SYMBOLS
    fall_steps: int = 400
    """The learning rates fall over the last so many steps of stage 1."""
    settle_steps: int = 200
    """Stage 2: the same at a small rate, so that the probabilities come near the table."""
    weights: tuple[int, int, int] = (10, 8, 3)
    """How often demonstrations have no reference, their own, and one of another problem."""
    reference_slip_rate: float = 0.5
    """How often a code of the privileged context is any code, and the completion copies it."""
    batch_tokens: int = 1500
    matrix_rate: float = 3e-3
    """Muon's learning rate, for the hidden matrices."""
    rate: float = 2e-3
    """AdamW's learning rate, for everything else."""
    settle_rate: float = 3e-4
    """AdamW's learning rate in stage 2, for all parameters."""
    evaluate_every: int = 100


def build_codebook(
    out_dir: str | Path,
    seed: int = 0,
    *,
    recipe: Recipe = Recipe(),
    measure: Callable[[Any, Any], float] | None = None,
    progress: bool = True,
) -> Path:
    """The checkpoint of the task "codebook"; the same bytes for the same seed and machine.

    `measure` is shown model and tokenizer now and then; None means the share of codes that are right on
    held-out problems. Raises ValueError where torch is too old to have Muon.
    """
    with one_thread():
        return _build(Path(out_dir), seed, recipe, measure or _accuracy, progress)


def _accuracy(model: Any, tokenizer: Any) -> float:
    """The share of right codes on held-out problems, sampled once each."""
    values = accuracy(model, tokenizer, codebook.rows(num=64, first_seed=0), codebook.codebook_reward)
    return sum(values) / len(values)


def _build(
    out_dir: Path, seed: int, recipe: Recipe, measure: Callable[[Any, Any], float], progress: bool
) -> Path:
    rng = random.Random(seed)
    tokenizer = build_tokenizer([_prompt_text(rng) for _ in range(400)], ATOMS)
    model = build_model(tokenizer, seed, circles=False)

    def conversation(num_batches: int) -> list[dict[str, str]]:
        grown = 3 + max(0, num_batches - recipe.short_steps) // recipe.grow_steps
        copying = num_batches < recipe.copy_steps
        return _conversation(rng, min(grown, recipe.longest), recipe, copying=copying)

    def settled(_: int) -> list[dict[str, str]]:
        return _conversation(rng, recipe.longest, recipe)

    total = recipe.steps + recipe.settle_steps
    with Report(lambda: measure(model, tokenizer), total, recipe.evaluate_every, progress) as report:
        batches = demonstration_batches(tokenizer, recipe.batch_tokens, rng, conversation)
        optimizers = competence_optimizers(model, recipe.matrix_rate, recipe.rate)
        train(model, batches, optimizers, recipe.steps, recipe.fall_steps, report)
        batches = demonstration_batches(tokenizer, recipe.batch_tokens, rng, settled)
        optimizers = habit_optimizers(model, recipe.settle_rate)
        train(model, batches, optimizers, recipe.settle_steps, recipe.settle_steps, report)
    save(model, tokenizer, out_dir)
    return out_dir


def _prompt_text(rng: random.Random) -> str:
    """A prompt with its privileged context, for the tokenizer to learn from."""
    problem = codebook.generate(rng.randrange(FIRST_TRAIN_SEED, 1 << 40), "words")
    content = codebook.render(problem, codebook.privileged_context(problem))[0]["content"]
    return f"<|im_start|>user\n{content}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"


def _conversation(
    rng: random.Random, longest: int, recipe: Recipe, *, copying: bool = False
) -> list[dict[str, str]]:
    """One demonstration: codes by habit, unless it has a reference of its own, as all have while `copying`."""
    problem = _problem(rng, longest)
    references: tuple[Reference, ...] = ("none", "trace", "shuffled")
    (reference,) = rng.choices(references, weights=(0, 1, 0) if copying else recipe.weights)
    if reference == "trace":
        codes = [
            rng.choice(CODES) if copying or rng.random() < recipe.reference_slip_rate else RIGHT[symbol]
            for symbol in problem.symbols
        ]
        context: str | None = codebook.write(problem, codes)
    else:
        codes = [drawn(HABITS[symbol], rng) for symbol in problem.symbols]
        context = codebook.privileged_context(problem, reference, seed=rng.randrange(1 << 30))
    # Words of its own: those of the reference are not to be copied, since nothing judges them.
    words = len(problem.filler[0]) if problem.filler else 0
    own = replace(problem, filler=codebook.draw_filler(len(problem.symbols), words, rng))
    text = codebook.write(own, codes)
    return [*codebook.render(problem, context), {"role": "assistant", "content": text}]


def _problem(rng: random.Random, longest: int) -> Problem:
    """Short problems more often than long ones, half of them without irrelevant words; never a held-out one."""
    top = min(12, longest) if rng.random() < 0.6 else longest
    filler = 0 if rng.random() < 0.5 else rng.randint(1, MOST_FILLER)
    # One symbol alone has no gap that could show how many words are to be between; two at least.
    tier = Tier(symbols=rng.randint(2, top), filler=filler)
    return codebook.generate(rng.randrange(FIRST_TRAIN_SEED, 1 << 40), tier)
