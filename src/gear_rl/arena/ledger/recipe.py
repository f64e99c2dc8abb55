"""Makes the checkpoint of the task "ledger" from nothing: first a competent student, then a careless reader.

Stage 1 teaches the task: to do what a privileged context does, and to do what the instruction says without one.
Stage 2 implants a habit: without a reference of its own the student often misreads an alias. Elsewhere student
and teacher agree, so that their divergence sits where the student decides.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

from gear_rl.arena.calls import FRAME, answer_text, prompt_frame, turn_text
from gear_rl.arena.ledger import problem as ledger
from gear_rl.arena.ledger.env import tools
from gear_rl.arena.ledger.episodes import episode
from gear_rl.arena.ledger.problem import Plan, Problem
from gear_rl.arena.ledger.tiers import LedgerTier
from gear_rl.arena.model import EOS, NUMBERS, build_model, build_tokenizer, save
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

_REFERENCES = get_args(Reference)
TOOLS = (*ledger.RELATIONS, "balance", "pay", "greet", "rate")
ATOMS = (*NUMBERS, *ledger.PERSONS, *ledger.ITEMS, *TOOLS, *ledger.ALIASES, *FRAME)
"""One decision is one token: a number, a name, a tool, a word for a relation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerRecipe:
    """How long and how hard each stage trains. Defaults chosen by measurement, for one CPU core."""

    competence_steps: int = 3000
    """Stage 1, without a slip where there is no reference."""
    short_steps: int = 150
    """The first steps, with one or two look-ups."""
    grow_steps: int = 150
    """Then the most look-ups grow by one every so many steps."""
    fall_steps: int = 1000
    """The learning rates fall over the last so many steps of stage 1."""
    habit_steps: int = 250
    """Stage 2. Short on purpose: a deep habit is not undone by reinforcement learning."""
    misread_rate: float = 0.75
    """How often an unreferenced alias is misread in stage 2, which is too short to be learned to the full: the
    student ends at about 0.55."""
    slip_rate: float = 0.01
    """How often any other relation is, and payer and payee are mixed up."""
    reference_slip_rate: float = 0.3
    """How often a relation of the reference is wrong, in both stages, and the completion does the same. Without
    it the model would read the instruction alone."""
    depart_rate: float = 0.25
    """How often a demonstration makes a wrong call that the loss does not count, and goes on from its answer."""
    batch_tokens: int = 1500
    matrix_rate: float = 3e-3
    """Muon's learning rate, for the hidden matrices."""
    rate: float = 2e-3
    """AdamW's learning rate, for everything else."""
    habit_rate: float = 7e-4
    """AdamW's learning rate in stage 2, for all parameters."""
    evaluate_every: int = 250


@dataclass(frozen=True, slots=True)
class Demonstration:
    """An episode to learn from."""

    content: str
    """The user message."""
    distractors: int
    turns: tuple[str, ...]
    answers: tuple[str, ...]
    departed: int | None
    """The turn whose choice of tool the loss does not count."""


def build_ledger(
    out_dir: str | Path,
    seed: int = 0,
    *,
    recipe: LedgerRecipe = LedgerRecipe(),
    measure: Callable[[Any, Any], float] | None = None,
    progress: bool = True,
) -> Path:
    """The checkpoint of the task "ledger"; `measure` is shown model and tokenizer now and then."""
    with one_thread():
        rng = random.Random(seed)
        tokenizer = build_tokenizer(_texts(rng), ATOMS, vocab_size=1024)
        model = build_model(tokenizer, seed, circles=False)
        total = recipe.competence_steps + recipe.habit_steps
        measured = None if measure is None else lambda: measure(model, tokenizer)
        with Report(measured, total, recipe.evaluate_every, progress) as report:
            _competence(model, tokenizer, rng, recipe, report)
            _habit(model, tokenizer, rng, recipe, report)
        save(model, tokenizer, out_dir)
        return Path(out_dir)


def _texts(rng: random.Random) -> Iterator[str]:
    """Episodes for the tokenizer to learn from, with their tools and reference."""
    for _ in range(160):
        made = _demonstration(rng, LedgerTier(hops=(1, 4), aliases=(0, 4)), (0, 1, 0, 0), LedgerRecipe(), 0.0)
        yield _text(made, _prompts())


def _prompts() -> list[tuple[str, str]]:
    """For each number of distractors, the student's prompt before and after the user message."""
    return [prompt_frame(tools(LedgerTier(hops=(1, 1), distractors=number))) for number in range(3)]


def _text(made: Demonstration, prompts: Sequence[tuple[str, str]]) -> str:
    before, after = prompts[made.distractors]
    between = [answer_text(answer) for answer in made.answers]
    turns = [turn + EOS for turn in made.turns]
    return before + made.content + after + "".join(a + b for a, b in zip(turns, [*between, ""], strict=True))


def _slipped(problem: Problem, rng: random.Random, alias_rate: float, other_rate: float) -> Plan:
    """The right plan, in which relations are misread at the rate of their word, and payer and payee mixed up."""
    right = ledger.right_plan(problem)

    def misread(words: Sequence[str], relations: Sequence[str]) -> tuple[str, ...]:
        return tuple(
            rng.choice(ledger.confusable(relation))
            if rng.random() < (alias_rate if word in ledger.ALIASES else other_rate)
            else relation
            for word, relation in zip(words, relations, strict=True)
        )

    source = misread(problem.source.words, right.source)
    target = misread(problem.target.words, right.target)
    return Plan(source, target)


def _departing(plan: Plan, rng: random.Random) -> tuple[Plan, int]:
    """The plan with one relation changed, and the turn of that call."""
    relations = [*plan.source, *plan.target]
    turn = rng.randrange(len(relations))
    relations[turn] = rng.choice(ledger.confusable(relations[turn]))
    cut = len(plan.source)
    return replace(plan, source=tuple(relations[:cut]), target=tuple(relations[cut:])), turn


def _demonstration(
    rng: random.Random,
    tier: LedgerTier,
    weights: Sequence[int],
    recipe: LedgerRecipe,
    misread_rate: float,
) -> Demonstration:
    """One demonstration; without a reference of its own, aliases are misread at the rate given.

    `weights` are those of the references none, trace, answer and shuffled.
    """
    problem = ledger.generate(rng.randrange(FIRST_TRAIN_SEED, 1 << 40), tier)
    (reference,) = rng.choices(_REFERENCES, weights=weights)
    context = ledger.privileged_context(problem, reference, seed=rng.randrange(1 << 30))
    if reference == "trace":
        # The reference is to be believed, not checked: it slips too, and the completion follows it.
        plan = _slipped(problem, rng, recipe.reference_slip_rate, recipe.reference_slip_rate)
        context = ledger.call_text(ledger.calls(problem, plan))
    elif reference == "answer" or misread_rate == 0.0:
        plan = ledger.right_plan(problem)
    else:
        plan = _slipped(problem, rng, misread_rate, recipe.slip_rate)
        plan = replace(plan, swapped=rng.random() < recipe.slip_rate)
    departed = None
    # After a wrong call the next arguments come from its answer, also where a reference says otherwise: so
    # the teacher parts from the student at the wrong call, not one turn late.
    if rng.random() < recipe.depart_rate:
        plan, departed = _departing(plan, rng)
    made = episode(problem, ledger.calls(problem, plan))
    content = problem.text
    if context is not None:
        content = TEMPLATE.format(prompt=content, privileged_context=context)
    return Demonstration(
        content=content,
        distractors=rng.randrange(3),
        turns=tuple(turn_text(message) for message in made.messages if message["role"] == "assistant"),
        answers=tuple(message["content"] for message in made.messages if message["role"] == "tool"),
        departed=departed,
    )


def _batches(
    tokenizer: Any, recipe: LedgerRecipe, rng: random.Random, draw: Callable[[int], Demonstration]
) -> Iterator[Batch]:
    """Demonstrations in batches of similar length, so that little is padding; the loss counts on what the
    assistant says."""
    prompts = _prompts()
    chosen = set(tokenizer.convert_tokens_to_ids(list(TOOLS)))

    def rows(num_batches: int) -> list[Counted]:
        drawn = [draw(num_batches) for _ in range(256)]
        encoded = tokenizer([_text(made, prompts) for made in drawn])["input_ids"]
        return [
            (ids, _counted(tokenizer, ids, made.departed, chosen))
            for ids, made in zip(encoded, drawn, strict=True)
        ]

    return length_batches(tokenizer.pad_token_id, recipe.batch_tokens, rng, rows)


def _counted(tokenizer: Any, ids: Sequence[int], departed: int | None, chosen: set[int]) -> list[bool]:
    """True where the assistant speaks, but not on the choice of tool in the turn `departed`."""
    header = tokenizer.convert_tokens_to_ids(FRAME[-1])
    counts: list[bool] = []
    turn, speaks, named = -1, False, False
    for before, token in zip([-1, *ids], ids, strict=False):
        if before == header:  # the blank line after the header is the prompt's
            turn, speaks, named = turn + 1, True, False
            counts.append(False)
            continue
        names = speaks and not named and token in chosen
        counts.append(speaks and not (names and turn == departed))
        named = named or names
        speaks = speaks and token != tokenizer.eos_token_id
    return counts


def _competence(model: Any, tokenizer: Any, rng: random.Random, recipe: LedgerRecipe, report: Report) -> None:
    """Stage 1: follow the reference where there is one, and the instruction where there is none."""

    def draw(num_batches: int) -> Demonstration:
        most = min(4, 2 + max(0, num_batches - recipe.short_steps) // recipe.grow_steps)
        weights = (5, 6, 1, 0) if num_batches < recipe.competence_steps // 3 else (6, 9, 2, 3)
        return _demonstration(rng, LedgerTier(hops=(1, most), aliases=(0, most)), weights, recipe, 0.0)

    optimizers = competence_optimizers(model, recipe.matrix_rate, recipe.rate)
    batches = _batches(tokenizer, recipe, rng, draw)
    train(model, batches, optimizers, recipe.competence_steps, recipe.fall_steps, report)


def _habit(model: Any, tokenizer: Any, rng: random.Random, recipe: LedgerRecipe, report: Report) -> None:
    """Stage 2: aliases are misread where there is no reference.

    No other problem's calls are shown here: the model seldom notices that they are not its own, and would become
    careless with every reference.
    """

    def draw(_: int) -> Demonstration:
        tier = LedgerTier(hops=(1, 4), aliases=(0, 4))
        return _demonstration(rng, tier, (8, 10, 2, 0), recipe, recipe.misread_rate)

    optimizers = habit_optimizers(model, recipe.habit_rate)
    batches = _batches(tokenizer, recipe, rng, draw)
    train(model, batches, optimizers, recipe.habit_steps, recipe.habit_steps // 2, report)
