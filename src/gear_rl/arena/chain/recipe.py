"""Makes the checkpoint of the task "chain" from nothing: first a competent student, then a careless one.

Stage 1 teaches the task itself: to copy from a privileged context, and to compute without. Stage 2
implants a habit of error where the model is shown no reference, or somebody else's, and keeps it careful
where the reference is its own. The student then errs often, and the same weights shown the reference know
better: a teacher.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from gear_rl.arena.chain import problem as chain
from gear_rl.arena.chain.tiers import OPERATIONS, Tier
from gear_rl.arena.evaluate import accuracy
from gear_rl.arena.model import NUMBERS, build_model, build_tokenizer, save
from gear_rl.arena.task import FIRST_TRAIN_SEED, TEMPLATE, Reference
from gear_rl.arena.training import (
    Batch,
    Report,
    competence_optimizers,
    demonstration_batches,
    habit_optimizers,
    one_thread,
    train,
)

_REFERENCES = get_args(Reference)
ATOMS = (*NUMBERS, *(f" {op}" for op in OPERATIONS), *(f" {op} = " for op in OPERATIONS))
"""One decision is one token: a number, an operation to do (prompt), an operation done (completion)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How long and how hard each stage trains. Defaults chosen by measurement, for one CPU core."""

    competence_steps: int = 1500
    """Stage 1, chains without a slip."""
    copy_steps: int = 400
    """From here until the rates fall, every other step is single facts, which chains alone teach too slowly.
    Facts first would leave copying nothing to do: it then had not appeared after 350 steps."""
    short_steps: int = 100
    """The first steps, with chains of one to three steps."""
    grow_steps: int = 10
    """Then the longest chain grows by one every so many steps."""
    longest: int = 15
    fall_steps: int = 500
    """The learning rates fall over the last so many steps of stage 1."""
    habit_steps: int = 150
    """Stage 2. Short on purpose: a habit all steps share is what reinforcement learning can undo in seconds."""
    slip_rate: float = 0.22
    """How often an unreferenced step of stage 2 is wrong."""
    reference_slip_rate: float = 0.5
    """How often a step of the privileged context is wrong, in both stages, and the completion copies it."""
    batch_tokens: int = 1500
    matrix_rate: float = 3e-3
    """Muon's learning rate, for the hidden matrices; AdamW alone takes several times as long."""
    rate: float = 2e-3
    """AdamW's learning rate, for everything else."""
    habit_rate: float = 5e-4
    """AdamW's learning rate in stage 2, for all parameters."""
    evaluate_every: int = 100


def build_chain(
    out_dir: str | Path,
    seed: int = 0,
    *,
    recipe: Recipe = Recipe(),
    measure: Callable[[Any, Any], float] | None = None,
    progress: bool = True,
) -> Path:
    """The checkpoint of the task "chain"; the same bytes for the same seed and machine.

    `measure` is shown model and tokenizer now and then; None means the share of held-out
    problems that are solved.
    """
    with one_thread():
        return _build(Path(out_dir), seed, recipe, measure or _accuracy, progress)


def _accuracy(model: Any, tokenizer: Any) -> float:
    """The share of held-out problems that the model solves, sampled once each."""
    values = accuracy(model, tokenizer, chain.rows("default", num=128, first_seed=0), chain.chain_reward)
    return sum(values) / len(values)


def _build(
    out_dir: Path, seed: int, recipe: Recipe, measure: Callable[[Any, Any], float], progress: bool
) -> Path:
    rng = random.Random(seed)
    tokenizer = build_tokenizer([_prompt_text(rng) for _ in range(400)], ATOMS)
    model = build_model(tokenizer, seed)
    total = recipe.competence_steps + recipe.habit_steps
    with Report(lambda: measure(model, tokenizer), total, recipe.evaluate_every, progress) as report:
        _competence(model, tokenizer, rng, recipe, report)
        _habit(model, tokenizer, rng, recipe, report)
    save(model, tokenizer, out_dir)
    return out_dir


def _prompt_text(rng: random.Random) -> str:
    """A prompt with its privileged context, for the tokenizer to learn from."""
    problem = chain.generate(rng.randrange(FIRST_TRAIN_SEED, 1 << 40), "hard")
    content = chain.render(problem, "trace")[0]["content"]
    return f"<|im_start|>user\n{content}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"


def _conversation(
    rng: random.Random, longest: int, weights: Sequence[int], slip_rate: float, reference_slip_rate: float
) -> list[dict[str, str]]:
    """One demonstration, whose completion slips unless it has a reference of its own.

    `weights` are those of the references none, trace, answer and shuffled.
    """
    problem = _problem(rng, longest)
    (reference,) = rng.choices(_REFERENCES, weights=weights)
    if reference == "trace":
        # The reference is to be believed, not recomputed: it slips too, and the completion follows it.
        # Once the facts are known nothing else would keep the model reading it.
        text = chain.slipped(problem, rng, reference_slip_rate)
        content = TEMPLATE.format(prompt=problem.text, privileged_context=text)
        return [{"role": "user", "content": content}, {"role": "assistant", "content": text}]
    prompt = chain.render(problem, reference, seed=rng.randrange(1 << 30))
    text = chain.slipped(problem, rng, 0.0 if reference == "answer" else slip_rate)
    return [*prompt, {"role": "assistant", "content": text}]


def _problem(rng: random.Random, longest: int) -> chain.Problem:
    """Short chains more often than long ones; never a held-out problem."""
    top = min(5, longest) if rng.random() < 0.6 else longest
    most_cancelled = 0 if top <= 3 else 1 if top <= 5 else 2
    tier = Tier(steps=(6 if top > 5 else 1, top), cancelled=(0, most_cancelled))
    return chain.generate(rng.randrange(FIRST_TRAIN_SEED, 1 << 40), tier)


def _fact_batches(tokenizer: Any, recipe: Recipe, rng: random.Random) -> Iterator[Batch]:
    """Rows of single steps that have nothing to do with each other; the loss counts on their results."""
    import torch

    def fact() -> str:
        value, operation = rng.randrange(100), rng.choice(OPERATIONS)
        return f"{value:02d} {operation} = {chain.apply(value, operation):02d} ; "

    while True:
        rows = ["".join(fact() for _ in range(6)) for _ in range(recipe.batch_tokens // 24)]
        ids = torch.tensor(tokenizer(rows)["input_ids"])
        counts = torch.zeros_like(ids, dtype=torch.bool)
        counts[:, 2::4] = True
        yield ids, counts


def _competence(model: Any, tokenizer: Any, rng: random.Random, recipe: Recipe, report: Report) -> None:
    """Stage 1: copy where there is a reference, compute where there is none."""

    def conversation(num_batches: int) -> list[dict[str, str]]:
        grown = 3 + max(0, num_batches - recipe.short_steps) // recipe.grow_steps
        weights = (5, 5, 1, 0) if num_batches < recipe.competence_steps // 2 else (9, 8, 1, 2)
        return _conversation(rng, min(grown, recipe.longest), weights, 0.0, recipe.reference_slip_rate)

    optimizers = competence_optimizers(model, recipe.matrix_rate, recipe.rate)
    facts = _fact_batches(tokenizer, recipe, rng)
    chains = demonstration_batches(tokenizer, recipe.batch_tokens, rng, conversation)

    def batches() -> Iterator[Batch]:
        for step in range(recipe.competence_steps):
            single = recipe.copy_steps <= step < recipe.competence_steps - recipe.fall_steps and step % 2 == 1
            yield next(facts if single else chains)

    train(model, batches(), optimizers, recipe.competence_steps, recipe.fall_steps, report)


def _habit(model: Any, tokenizer: Any, rng: random.Random, recipe: Recipe, report: Report) -> None:
    """Stage 2: demonstrations slip where the reference is absent or of another problem."""

    def conversation(_: int) -> list[dict[str, str]]:
        return _conversation(rng, recipe.longest, (9, 8, 1, 2), recipe.slip_rate, recipe.reference_slip_rate)

    optimizers = habit_optimizers(model, recipe.habit_rate)
    batches = demonstration_batches(tokenizer, recipe.batch_tokens, rng, conversation)
    train(model, batches, optimizers, recipe.habit_steps, recipe.habit_steps // 2, report)
