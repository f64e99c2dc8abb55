"""Makes the checkpoint of the task "errands" from nothing: an agent that knows each code to its own degree.

Demonstrations without a reference give each code with the probabilities of the table `HABITS`; where the
problem's reference is shown they follow it, also where it is wrong, so that it is read and not remembered. All of
them wait now and then.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gear_rl.arena.calls import (
    FRAME,
    Call,
    Messages,
    answer_text,
    call_text,
    prompt_frame,
    tokens,
    turn_text,
)
from gear_rl.arena.errands import problem as errands
from gear_rl.arena.errands.env import played, tools
from gear_rl.arena.errands.problem import HABITS, ITEMS, RIGHT, SEND, WAIT
from gear_rl.arena.errands.tiers import TIERS, Tier
from gear_rl.arena.habits import CODES, drawn
from gear_rl.arena.model import EOS, build_model, build_tokenizer, save
from gear_rl.arena.task import FIRST_TRAIN_SEED, TEMPLATE, Reference
from gear_rl.arena.training import (
    Batch,
    Counted,
    Report,
    competence_optimizers,
    habit_optimizers,
    length_batches,
    one_thread,
    train,
)

ATOMS = (*CODES, *ITEMS, SEND, WAIT, *FRAME)
"""One decision is one token: a code, an item and a tool each are."""
Demonstration = tuple[str, Messages]
"""A user message, and the messages of the completion."""
LONGEST = max(tier.requests for tier in TIERS.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How long and how hard each stage trains. Defaults chosen by measurement, for one CPU core."""

    copy_steps: int = 300
    """The first steps of stage 1: every problem with its own reference, every code of it any code."""
    steps: int = 1000
    """Stage 1: to call tools, to read a reference, and the habits."""
    short_steps: int = 60
    """The first steps, with three requests at most."""
    grow_steps: int = 20
    """Then the longest problem grows by one request every so many steps."""
    fall_steps: int = 400
    """The learning rates fall over the last so many steps of stage 1."""
    settle_steps: int = 250
    """Stage 2: the same at a small rate, so that the probabilities come near the table."""
    weights: tuple[int, int, int] = (10, 8, 3)
    """How often demonstrations have no reference, their own, and one of another problem."""
    reference_slip_rate: float = 0.5
    """How often a code of the privileged context is any code, and the completion copies it."""
    wait_rate: float = 0.15
    """How often a call is put off by one that waits."""
    draws: int = 256
    """Demonstrations that are sorted by length and cut into batches at a time."""
    batch_tokens: int = 2000
    matrix_rate: float = 3e-3
    """Muon's learning rate, for the hidden matrices."""
    rate: float = 2e-3
    """AdamW's learning rate, for everything else."""
    settle_rate: float = 3e-4
    """AdamW's learning rate in stage 2, for all parameters."""
    evaluate_every: int = 100


def build_errands(
    out_dir: str | Path,
    seed: int = 0,
    *,
    recipe: Recipe = Recipe(),
    measure: Callable[[Any, Any], float] | None = None,
    progress: bool = True,
) -> Path:
    """The checkpoint of the task "errands"; the same bytes for the same seed and machine.

    `measure` is shown model and tokenizer now and then. Raises ValueError where torch is too old to have Muon.
    """
    with one_thread():
        rng = random.Random(seed)
        frame = prompt_frame(tools())
        tokenizer = build_tokenizer((_text(rng, frame) for _ in range(160)), ATOMS, vocab_size=1024)
        model = build_model(tokenizer, seed, circles=False)

        def competent(num_batches: int) -> Demonstration:
            grown = 3 + max(0, num_batches - recipe.short_steps) // recipe.grow_steps
            return _demonstration(rng, min(grown, LONGEST), recipe, copying=num_batches < recipe.copy_steps)

        def settled(_: int) -> Demonstration:
            return _demonstration(rng, LONGEST, recipe)

        total = recipe.steps + recipe.settle_steps
        measured = None if measure is None else lambda: measure(model, tokenizer)
        with Report(measured, total, recipe.evaluate_every, progress) as report:
            batches = _batches(tokenizer, recipe, rng, frame, competent)
            optimizers = competence_optimizers(model, recipe.matrix_rate, recipe.rate)
            train(model, batches, optimizers, recipe.steps, recipe.fall_steps, report)
            batches = _batches(tokenizer, recipe, rng, frame, settled)
            optimizers = habit_optimizers(model, recipe.settle_rate)
            train(model, batches, optimizers, recipe.settle_steps, recipe.settle_steps, report)
        save(model, tokenizer, out_dir)
        return Path(out_dir)


def _demonstration(
    rng: random.Random, longest: int, recipe: Recipe, *, copying: bool = False
) -> Demonstration:
    """A user message and what follows: codes by habit, unless it has a reference of its own, as all have while
    `copying`. Never of a held-out problem."""
    problem = errands.generate(
        rng.randrange(FIRST_TRAIN_SEED, 1 << 40), Tier(requests=rng.randint(1, longest))
    )
    references: tuple[Reference, ...] = ("none", "trace", "shuffled")
    (reference,) = rng.choices(references, weights=(0, 1, 0) if copying else recipe.weights)
    context = errands.privileged_context(problem, reference, seed=rng.randrange(1 << 30))
    if reference == "trace":
        slip = 1.0 if copying else recipe.reference_slip_rate
        codes = [rng.choice(CODES) if rng.random() < slip else RIGHT[item] for item in problem.items]
        context = call_text(errands.sends(problem, codes))
    else:
        codes = [drawn(HABITS[item], rng) for item in problem.items]
    calls: list[Call] = []
    for call in errands.sends(problem, codes):
        calls += [Call(WAIT, {}), call] if rng.random() < recipe.wait_rate else [call]
    text = problem.text
    if context is not None:
        text = TEMPLATE.format(prompt=text, privileged_context=context)
    return text, played(problem, calls)


def _batches(
    tokenizer: Any,
    recipe: Recipe,
    rng: random.Random,
    frame: tuple[str, str],
    draw: Callable[[int], Demonstration],
) -> Iterator[Batch]:
    """Demonstrations in batches of similar length; the loss counts on what the assistant says."""

    def counted(text: str, messages: Messages) -> Counted:
        prompt: list[int] = tokenizer(text.join(frame))["input_ids"]
        ids, own = tokens(tokenizer, messages)
        return prompt + ids, [False] * len(prompt) + own

    def rows(num_batches: int) -> list[Counted]:
        return [counted(*draw(num_batches)) for _ in range(recipe.draws)]

    return length_batches(tokenizer.pad_token_id, recipe.batch_tokens, rng, rows)


def _text(rng: random.Random, frame: tuple[str, str]) -> str:
    """A demonstration for the tokenizer to learn from, with tools and reference."""
    text, messages = _demonstration(rng, LONGEST, Recipe(), copying=True)
    return text.join(frame) + "".join(
        turn_text(m) + EOS if m["role"] == "assistant" else answer_text(m["content"]) for m in messages
    )
