"""What the tasks of agents share: calls of tools, their texts and tokens, and playing them. Knows no task."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gear_rl.arena.task import TEMPLATE, Turns
from gear_rl.environments import RESERVED_METHODS
from gear_rl.signals.privileged import render

FRAME = ("user\n<tool_response>\n", "\n</tool_response>", "assistant\n<think>\n\n</think>")
"""Boilerplate without a decision, each one token of an agent's tokenizer. The blank line after the last one stays
a token of its own: the prompt ends there."""
Messages = list[dict[str, Any]]
Tools = list[Callable[..., Any]]


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a tool.

    >>> Call("owner", {"item": "lamp"}).text
    '<tool_call>\\n{"name": "owner", "arguments": {"item": "lamp"}}\\n</tool_call>'
    """

    name: str
    arguments: Mapping[str, str | int]

    @property
    def text(self) -> str:
        """The call as Qwen3 writes it."""
        arguments = json.dumps(dict(self.arguments))
        return f'<tool_call>\n{{"name": "{self.name}", "arguments": {arguments}}}\n</tool_call>'


def call_text(made: Sequence[Call]) -> str:
    """The calls one after the other, as the model writes them.

    >>> call_text([Call("wait", {})] * 4).count("<tool_call>")
    4
    """
    return "\n".join(call.text for call in made)


def tools_of(environment: Any) -> Tools:
    """An environment's tools in TRL's order: its public methods but the reserved ones, by name."""
    names = [name for name in dir(environment) if not name.startswith("_") and name not in RESERVED_METHODS]
    return [getattr(environment, name) for name in sorted(names)]


def play(environment: Any, made: Iterable[Call], last: str) -> tuple[Messages, int]:
    """The calls made in an environment, each in a turn of its own, then a last text; and how many were refused.

    The messages are the completion's: the assistant's and the tools', without the prompt.
    """
    messages: Messages = []
    errors = 0
    for call in made:
        function = {"name": call.name, "arguments": dict(call.arguments)}
        messages.append(
            {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}
        )
        try:
            result = getattr(environment, call.name)(**call.arguments)
        except ValueError as error:
            result = {"error": str(error)}
            errors += 1
        messages.append({"role": "tool", "name": call.name, "content": str(result)})
    messages.append({"role": "assistant", "content": last})
    return messages, errors


def tokens(tokenizer: Any, messages: Messages) -> tuple[list[int], list[bool]]:
    """A completion's ids and which of them the assistant emitted, exactly as TRL's tool loop joins them.

    Each assistant turn is tokenised alone and ends with the closing token; the tool's answer and the header of
    the next turn stand between.
    """
    ids: list[int] = []
    mask: list[bool] = []
    for message in messages:
        own = message["role"] == "assistant"
        new = (
            turns_of(tokenizer, [message])[0]
            if own
            else tokenizer(answer_text(message["content"]))["input_ids"]
        )
        ids += new
        mask += [own] * len(new)
    return ids, mask


def turns_of(tokenizer: Any, messages: Messages) -> Turns:
    """The ids of each of the assistant's turns, closing tokens included."""
    from gear_rl.arena.model import EOS

    return [tokenizer(turn_text(m) + EOS)["input_ids"] for m in messages if m["role"] == "assistant"]


def turn_text(message: dict[str, Any]) -> str:
    """What the assistant emits for a message, without the closing token.

    >>> turn_text({"role": "assistant", "content": "done"})
    'done'
    """
    made = [Call(**call["function"]) for call in message.get("tool_calls") or ()]
    return message["content"] + call_text(made)


def answer_text(content: str) -> str:
    """What follows an assistant turn: the rest of its line, the tool's answer, the header of the next turn.

    >>> answer_text("bob").splitlines()[2:5]
    ['<tool_response>', 'bob', '</tool_response><|im_end|>']
    """
    return (
        f"\n<|im_start|>user\n<tool_response>\n{content}\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )


def render_ids(tokenizer: Any, text: str, tools: Tools, context: str | None = None) -> list[int]:
    """The ids of the student's prompt, or of the teacher's where a privileged context is given."""
    from gear_rl.arena.model import CHAT_TEMPLATE_KWARGS

    messages: Any = [{"role": "user", "content": text}]
    if context is not None:
        messages = render(messages, context, TEMPLATE)
    ids = tokenizer.apply_chat_template(
        messages,
        tools=tools,
        add_generation_prompt=True,
        tokenize=True,
        return_dict=False,
        **CHAT_TEMPLATE_KWARGS,
    )
    return list(ids)


def prompt_frame(tools: Tools) -> tuple[str, str]:
    """The text of a prompt with these tools, before and after the user message."""
    from transformers.utils.chat_template_utils import render_jinja_template

    from gear_rl.arena.model import CHAT_TEMPLATE_KWARGS, chat_template

    listed: Any = tools
    (text,), _ = render_jinja_template(
        [[{"role": "user", "content": "{content}"}]],
        tools=listed,
        chat_template=chat_template(),
        add_generation_prompt=True,
        **CHAT_TEMPLATE_KWARGS,
    )
    before, after = text.split("{content}")
    return before, after


def success(trainer: Any, rows: Sequence[Mapping[str, Any]], greedy: bool = False) -> float:
    """The mean reward of the rows for a trainer's model, one rollout each."""
    return sum(reward or 0.0 for reward in trainer.solve(rows, greedy=greedy, seed=0)) / len(rows)


def successes(
    trainer: Any, rows: Sequence[Mapping[str, Any]], contexts: Mapping[str, Sequence[str | None]]
) -> dict[str, float]:
    """Mean rewards: `sampled` and `greedy` alone, then `sampled_*` with each kind of context in the prompts."""
    measured = {"sampled": success(trainer, rows), "greedy": success(trainer, rows, greedy=True)}
    for name, shown in contexts.items():
        informed = [
            {**row, "prompt": render(row["prompt"], context or "", TEMPLATE)}
            for row, context in zip(rows, shown, strict=True)
        ]
        measured[f"sampled_{name}"] = success(trainer, informed)
    return measured
