"""Episodes of the task "ledger": calls made in a real environment, right ones and ones with a planted fault.

Also their tokens. Knows no model and no trainer.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from gear_rl.arena.ledger import problem as ledger
from gear_rl.arena.ledger.env import LedgerEnvGreetRate, tools
from gear_rl.arena.ledger.problem import Call, Plan, Problem
from gear_rl.arena.ledger.tiers import LedgerTier
from gear_rl.arena.task import TEMPLATE
from gear_rl.signals.privileged import render

Fault = Literal["relation", "argument"]
"""What is wrong with a planted call: the tool (another relation), or payer and payee (mixed up)."""
Messages = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Episode:
    """What an assistant did, what the tools answered, and what it earned.

    >>> right = episode(ledger.generate(0, "easy"))
    >>> right.messages[-1], right.reward, right.errors
    ({'role': 'assistant', 'content': 'done'}, 1.0, 0)
    """

    messages: Messages
    """The completion: assistant and tool messages, without the prompt."""
    reward: float
    errors: int
    """How many calls the tools refused."""


@dataclass(frozen=True, slots=True)
class Planted:
    """An episode with exactly one wrong call; the later ones follow from what the tools answered.

    >>> planted = plant(ledger.generate(0), seed=0)
    >>> planted.turn, planted.kind
    (1, 'relation')
    """

    messages: Messages
    turn: int
    """The assistant turn of the wrong call, from 0."""
    kind: Fault


def episode(problem: Problem, made: Sequence[Call] | None = None, *, irreversible: bool = False) -> Episode:
    """The calls, by default gold, made in a real environment, each in a turn of its own; then "done".

    >>> episode(ledger.generate(0)).reward
    1.0
    """
    env = LedgerEnvGreetRate()
    env._begin(problem, irreversible)  # pyright: ignore[reportPrivateUsage]
    messages: Messages = []
    errors = 0
    for call in ledger.calls(problem) if made is None else made:
        function = {"name": call.name, "arguments": dict(call.arguments)}
        messages.append(
            {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}
        )
        try:
            result = getattr(env, call.name)(**call.arguments)
        except ValueError as error:
            result = {"error": str(error)}
            errors += 1
        messages.append({"role": "tool", "name": call.name, "content": str(result)})
    messages.append({"role": "assistant", "content": ledger.DONE})
    return Episode(messages, env.get_reward(), errors)


def plant(problem: Problem, seed: int, kind: Fault = "relation") -> Planted:
    """An episode with one wrong call at a known turn, which earns 0.

    A wrong relation stands where the instruction has an alias: that is where the student errs. A wrong look-up
    can be refused at the payment, so faults that are not come first; and it can heal, so a plain word is
    misread where no misread alias costs the reward. Raises ValueError where no fault does.

    >>> calls = [m for m in plant(ledger.generate(0, "easy"), seed=0).messages if m["role"] == "assistant"]
    >>> calls[0]["tool_calls"][0]["function"]["name"]
    'boss'
    """
    rng = random.Random(seed)
    right = ledger.right_plan(problem)
    if kind == "argument":
        choices = [[(len(ledger.calls(problem)) - 1, replace(right, swapped=True))]]
    else:
        choices = [_misread(problem, right, rng, alias=True), _misread(problem, right, rng, alias=False)]
    for faults in choices:
        refused: Planted | None = None
        for turn, plan in faults:
            made = episode(problem, ledger.calls(problem, plan))
            if made.reward == 0.0:
                planted = Planted(made.messages, turn, kind)
                if not made.errors:
                    return planted
                refused = refused or planted
        if refused is not None:
            return refused
    raise ValueError(f"no {kind} fault costs the reward of {problem.text!r}; take another problem")


def _misread(problem: Problem, right: Plan, rng: random.Random, *, alias: bool) -> list[tuple[int, Plan]]:
    """Every plan with one alias, or one plain word, misread and the turn of that call, in random order."""
    faults: list[tuple[int, Plan]] = []
    words = (*problem.source.words, *problem.target.words)
    relations = (*right.source, *right.target)
    cut = len(right.source)
    for turn, (word, relation) in enumerate(zip(words, relations, strict=True)):
        for wrong in ledger.confusable(relation) if (word in ledger.ALIASES) == alias else ():
            changed = (*relations[:turn], wrong, *relations[turn + 1 :])
            faults.append((turn, Plan(changed[:cut], changed[cut:])))
    rng.shuffle(faults)
    return faults


def tokens(tokenizer: Any, messages: Messages) -> tuple[list[int], list[bool]]:
    """A completion's ids and which of them the assistant emitted, exactly as TRL's tool loop joins them.

    Each assistant turn is tokenised alone and ends with the closing token; the tool's answer and the header of
    the next turn stand between.
    """
    from gear_rl.arena.model import EOS

    ids: list[int] = []
    mask: list[bool] = []
    for message in messages:
        if message["role"] == "tool":
            new = tokenizer(answer_text(message["content"]))["input_ids"]
        else:
            new = tokenizer(turn_text(message) + EOS)["input_ids"]
        ids += new
        mask += [message["role"] == "assistant"] * len(new)
    return ids, mask


def turn_text(message: dict[str, Any]) -> str:
    """What the assistant emits for a message, without the closing token.

    >>> turn_text({"role": "assistant", "content": "done"})
    'done'
    """
    made = [Call(**call["function"]) for call in message.get("tool_calls") or ()]
    return message["content"] + ledger.call_text(made)


def answer_text(content: str) -> str:
    """What follows an assistant turn: the rest of its line, the tool's answer, the header of the next turn.

    >>> answer_text("bob").splitlines()[2:5]
    ['<tool_response>', 'bob', '</tool_response><|im_end|>']
    """
    return (
        f"\n<|im_start|>user\n<tool_response>\n{content}\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )


def prompt_ids(
    tokenizer: Any, problem: Problem, tier: str | LedgerTier = "default", context: str | None = None
) -> list[int]:
    """The ids of the student's prompt, or of the teacher's where a privileged context is given."""
    from gear_rl.arena.model import CHAT_TEMPLATE_KWARGS

    messages: Any = [{"role": "user", "content": problem.text}]
    if context is not None:
        messages = render(messages, context, TEMPLATE)
    ids = tokenizer.apply_chat_template(
        messages,
        tools=tools(tier),
        add_generation_prompt=True,
        tokenize=True,
        return_dict=False,
        **CHAT_TEMPLATE_KWARGS,
    )
    return list(ids)
