"""``forms`` for an agent: the look-ups come in several forms, each filled in by a call; one reward for all.

The prompt asks the first form, and the tool's answer to a call asks the next. ``CallTruth`` is told which
decisions are right, as ``FieldTruth`` is, and so whether the agent stops too early.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from torch import Tensor

from benchmarks import forms
from gear_rl.credit.credit_config import DEFAULT_TEMPLATE
from gear_rl.credit.teacher_prompts import render
from gear_rl.engine import Engine
from gear_rl.rollouts import RolloutBatch
from gear_rl.signals.steps import StepId, Steps, StepScore

FORMS, FIELDS = 3, 6
"""Of a rollout, and of a form."""
DONE = "done"
"""The tool's answer to the last form, and the agent's last words."""

_OPEN = '"fields": "'
_CLOSE = re.compile(r"\}\}\s*(?:</tool_call>)?")
"""The end of a call; some tokenizers have the tag as a special token, which has no text."""


class FormDesk:
    """One rollout: a form after the other; the reward is the share of all fields that are right.

    >>> desk = FormDesk()
    >>> desk.reset(asked=["plural ox; past go", "symbol neon"])
    >>> desk.fill("ox: oxen; go: goed"), desk.fill("neon: Ne"), desk.get_reward(), desk.turn_rewards()
    ('symbol neon', 'done', 0.6666666666666666, [0.5, 1.0])
    """

    def reset(self, asked: Sequence[str], **row: Any) -> None:
        """Begin the rollout of a row."""
        self.asked, self.solutions = asked, [*map(solution_of, asked)]
        self.calls: list[str] = []

    def fill(self, fields: str) -> str:
        """Fill in the form.

        Args:
            fields: Fields
        """
        if json.dumps(fields, ensure_ascii=False) != f'"{fields}"':
            raise ValueError("fields are one line of plain text")
        self.calls.append(fields)
        return self.asked[len(self.calls)] if len(self.calls) < len(self.asked) else DONE

    def get_reward(self) -> float:
        """The share of the fields that are right."""
        asked = sum(len(solution.split(";")) for solution in self.solutions)
        return sum(right for _, right in decisions_of(self)) / asked

    def turn_rewards(self) -> list[float]:
        """Of each call the share of its form that is right, 0 where no form was left; it is no tool."""
        pairs = zip(decisions_of(self), self.solutions, strict=False)
        shares = [right / len(solution.split(";")) for (_, right), solution in pairs]
        return shares + [0.0] * (len(self.calls) - len(shares))

    def anchor_states(self) -> list[str]:
        """The form before each call, and after the last; it is no tool."""
        return [*self.asked, *[DONE] * (len(self.calls) + 1)][: len(self.calls) + 1]


def solution_of(asked: str) -> str:
    """A form, filled in.

    >>> solution_of("plural ox; symbol neon")
    'ox: oxen; neon: Ne'
    """
    fields = (field.split(" ", 1) for field in asked.split("; "))
    return "; ".join(f"{key}: {dict(forms.FAMILIES[family])[key]}" for family, key in fields)


def decisions_of(desk: FormDesk) -> list[tuple[list[tuple[int, int, bool]], int]]:
    """``forms.decisions`` of each call that filled in a form."""
    return [*map(_decisions, desk.calls[: len(desk.solutions)], desk.solutions)]


def _decisions(call: str, solution: str) -> tuple[list[tuple[int, int, bool]], int]:
    return forms.decisions(call.replace(";", "\n"), solution.replace("; ", "\n"))


def rows(part: str, num: int, items: int | None = None) -> list[dict[str, Any]]:
    """Rows with ``prompt``, ``asked`` and ``solution``, of the fields of ``forms.rows``.

    >>> [row] = rows("train", 1)
    >>> row["prompt"][0]["content"][:55]
    'Fill in 3 forms. The first: past hold; past grow; symbo'
    >>> len(row["asked"]), row["solution"].split("\\n")[0]
    (3, 'hold: held; grow: grew; chlorine: Cl; teach: taught; thirty-five: 35; Syria: Damascus')
    """
    made = list[dict[str, Any]]()
    for row in forms.rows(part, num, items=items):
        fields = row["prompt"].split("\n")[1:]
        asked = ["; ".join(fields[n * FIELDS :][:FIELDS]) for n in range(FORMS)]
        task = f"Fill in {FORMS} forms. The first: {asked[0]}"
        made.append(
            {
                "prompt": [{"role": "user", "content": task}],
                "asked": asked,
                "solution": "\n".join(map(solution_of, asked)),
            }
        )
    return made


def transcript(row: dict[str, Any]) -> list[dict[str, Any]]:
    """The messages of a rollout that has every field right, with the tool's answers."""
    messages = list[dict[str, Any]]()
    for solution, answer in zip(row["solution"].split("\n"), [*row["asked"][1:], DONE], strict=True):
        function = {"name": "fill", "arguments": {"fields": solution}}
        called = {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"type": "function", "function": function}],
        }
        messages += [called, {"role": "tool", "name": "fill", "content": answer}]
    return [*messages, {"role": "assistant", "content": DONE}]


def demonstrations(num: int) -> list[dict[str, Any]]:
    """Transcripts for fine-tuning, with the tool; every other prompt is the teacher's."""
    from transformers.utils.chat_template_utils import get_json_schema

    tools = json.dumps([get_json_schema(FormDesk().fill)])
    return [
        {
            "prompt": render(row["prompt"], row["solution"], DEFAULT_TEMPLATE) if n % 2 else row["prompt"],
            "completion": transcript(row),
            "tools": tools,
        }
        for n, row in enumerate(rows("warm", num))
    ]


def call_spans(text: str, desk: FormDesk, truncated: bool = False) -> list[tuple[int, int, float]] | None:
    """Where each decision of a rollout stands in what its agent wrote, and whether it is right.

    The first character of a turn decides to go on, which is right while a form is left. A call that was cut off
    has decisions as far as it goes. None where a call is not found.

    >>> desk = FormDesk()
    >>> desk.reset(asked=["plural ox", "symbol neon"])
    >>> _ = desk.fill("ox: oxes")
    >>> call_spans('{"fields": "ox: oxes"}}</tool_call>done', desk)
    [(0, 1, 1.0), (12, 15, 1.0), (15, 20, 0.0), (19, 21, 1.0), (35, 40, 0.0)]
    >>> call_spans('{"fields": "ox: oxes"}}</tool_call>{"fields": "neon: N', desk, truncated=True)[4:]
    [(35, 36, 1.0), (47, 52, 1.0), (52, 54, 0.0)]
    """
    spans, end = list[tuple[int, int, float]](), 0
    for number, call in enumerate(desk.calls):
        is_left = number < len(desk.solutions)
        spans.append((end, end + 1, float(is_left)))
        begin = text.find(f'"{call}"', end) + 1
        closed = _CLOSE.search(text, begin + len(call))
        if not begin or closed is None:
            return None
        if is_left:
            spans += _shifted(decisions_of(desk)[number][0], begin)
        end = closed.end()
    if len(desk.calls) >= len(desk.solutions):
        return [*spans, (end, end + 1, 1.0)]
    if not truncated:
        return [*spans, (end, len(text) + 1, 0.0)]
    spans.append((end, end + 1, 1.0))
    if _OPEN in text[end:]:
        begin = text.index(_OPEN, end) + len(_OPEN)
        spans += _shifted(_decisions(text[begin:], desk.solutions[len(desk.calls)])[0][:-1], begin)
    return spans


def _shifted(found: Sequence[tuple[int, int, bool]], by: int) -> list[tuple[int, int, float]]:
    return [(begin + by, end + by, float(right)) for begin, end, right in found]


def _with_spans(batch: RolloutBatch, engine: Engine) -> RolloutBatch:
    done, spans = batch.completions, list[list[tuple[int, int, float]] | None]()
    for b, desk in enumerate(batch.environments or ()):
        text = engine.tokenizer.decode(done.ids[b][done.mask[b]].tolist(), skip_special_tokens=True)
        spans.append(call_spans(text, desk, bool(done.truncated and done.truncated[b])))
    return replace(batch, logged={**batch.logged, "step_scores": spans})


@dataclass(frozen=True)
class CallStepId(StepId):
    """The decision that a token belongs to."""

    steps: Steps = "spans"

    def compute(self, batch: RolloutBatch, engine: Engine) -> Tensor:
        return super().compute(_with_spans(batch, engine), engine)


@dataclass(frozen=True)
class CallStepScore(StepScore):
    """Whether the decision of a token is right."""

    steps: Steps = "spans"

    def compute(self, batch: RolloutBatch, engine: Engine) -> Tensor:
        return super().compute(_with_spans(batch, engine), engine)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallTruth(forms.FieldTruth):
    """Perfect credit for the agent: that of ``FieldTruth``, on the decisions of its calls."""

    name: ClassVar[str] = "call_truth"
    needs: ClassVar[tuple[Any, ...]] = (CallStepId(), CallStepScore())
