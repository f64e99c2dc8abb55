"""The checkpoint of "errands": an agent that knows codes with different probabilities, as codebook's student.

Demonstrations wait now and then.
"""

import random
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

from gear_rl.arena.codes import CODES, draw_code
from gear_rl.arena.errands.env import ErrandsEnv
from gear_rl.arena.errands.problem import BELIEFS, ITEMS, RIGHT, SEND, WAIT, Call, Tier, generate, play_calls
from gear_rl.arena.errands.truth import HEADER
from gear_rl.arena.model import CHAT_TEMPLATE_KWARGS, EOS, answer_text, chat_template, tokens
from gear_rl.arena.task import FIRST_TRAIN_SEED, Reference
from tools.arena.recipe import Counted, Demonstration, Recipe, Stage, shown

_REFERENCES: tuple[Reference, ...] = ("none", "trace", "shuffled")


def tools() -> list[Callable[..., Any]]:
    """The tools in the order in which TRL lists them."""
    environment = ErrandsEnv()
    return [environment.send, environment.wait]


@cache
def _frame() -> tuple[str, str]:
    """The text of a prompt with these tools, before and after the user message."""
    from transformers.utils.chat_template_utils import render_jinja_template

    listed: Any = tools()
    (text,), _ = render_jinja_template(
        [[{"role": "user", "content": "{content}"}]],
        tools=listed,
        chat_template=chat_template(),
        add_generation_prompt=True,
        **CHAT_TEMPLATE_KWARGS,
    )
    before, after = text.split("{content}")
    return before, after


def _texts(rng: random.Random) -> Iterable[str]:
    for _ in range(160):
        content, completion = demonstration(rng, RECIPE.longest, "early")
        parts = [answer_text(text) if place % 2 else text + EOS for place, text in enumerate(completion)]
        yield content.join(_frame()) + "".join(parts)


def _counted(tokenizer: Any, demonstrations: list[Demonstration]) -> list[Counted]:
    """The loss counts on what the agent writes."""
    rows: list[Counted] = []
    for content, completion in demonstrations:
        ids: list[int] = [*tokenizer(content.join(_frame()))["input_ids"]]
        counts = [False] * len(ids)
        for place, turn in enumerate(tokens(tokenizer, completion)):
            ids, counts = ids + turn, counts + [place % 2 == 0] * len(turn)
        rows.append((ids, counts))
    return rows


def demonstration(rng: random.Random, longest: int, stage: Stage) -> Demonstration:
    """A user message and its completion, never held out: codes by belief without the problem's reference."""
    problem = generate(rng.randrange(FIRST_TRAIN_SEED, 1 << 40), Tier(requests=rng.randint(1, longest)))
    copying = stage == "early"
    (kind,) = rng.choices(_REFERENCES, weights=(0, 1, 0) if copying else (10, 8, 3))
    context = problem.reference(kind, seed=rng.randrange(1 << 30))
    if kind == "trace":
        slip = 1.0 if copying else 0.5
        codes = [rng.choice(CODES) if rng.random() < slip else RIGHT[item] for item in problem.items]
        context = "\n".join(call.text for call in problem.sends(codes))
    else:
        codes = [draw_code(BELIEFS[item], rng) for item in problem.items]
    calls: list[Call] = []
    for call in problem.sends(codes):
        calls += [Call(WAIT, {}), call] if rng.random() < 0.15 else [call]
    return shown(problem, context), play_calls(calls)


RECIPE = Recipe(
    # Besides codes, items and tools: boilerplate without a decision.
    atoms=(*CODES, *ITEMS, SEND, WAIT, "user\n<tool_response>\n", "\n</tool_response>", HEADER),
    texts=_texts,
    demonstration=demonstration,
    counted=_counted,
    vocab_size=1024,
    steps=1000,
    early_steps=300,
    short_steps=60,
    grow_steps=20,
    longest=10,
    fall_steps=400,
    settle_steps=250,
    settle_fall_steps=250,
    settle_rate=3e-4,
    batch_tokens=2000,
)
