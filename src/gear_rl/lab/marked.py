"""A user's completions with a marked fault, for ``gear score --data``: reading, and what the engine is given."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from gear_rl.arena.task import DEFAULT_TASK, Case, all_tasks
from gear_rl.credit.contexts import wrong_contexts
from gear_rl.data.rewards.text import dotted
from gear_rl.data.rows import prompt_fault
from gear_rl.data.sources import read_text
from gear_rl.data.spans import token_span
from gear_rl.errors import InputError, did_you_mean
from gear_rl.files import replace_file
from gear_rl.lab.replay import prompt_tokens
from gear_rl.lab.score import REPLAY, Material
from gear_rl.runs.config import RunConfig, load_config, parse_overrides
from gear_rl.runs.machine import machine_defaults
from gear_rl.runs.trainer import is_arena
from gear_rl.signals.forwards import max_positions
from gear_rl.signals.privileged import CONTRASTS, NO_CONTRAST, PRIVILEGED_COLUMNS, privileged_context, render

EXAMPLE = (
    '{"prompt": "12 + 30 - 2", "solution": "12 + 30 = 42, 42 - 2 = 40", '
    '"completion": "12 + 30 = 52, 52 - 2 = 50", "fault": {"text": "= 52"}}'
)
"""A line of such a file."""
_REWARD = "replayed_reward"
"""The column that says what a replayed completion earns: 0 the faulty one, 1 the other."""
BATCH = 8
"""Completions through the model at a time, where the user does not say."""
REPORTED = 10
"""Lines set aside that are reported one by one; the others are counted."""
_OWN = ("model", "dataset", "reward", "credit", "output_dir", "max_steps", *REPLAY)
"""Settings that scoring decides itself."""


def marked_reward(completions: Sequence[Any], replayed_reward: Sequence[float], **_: Any) -> list[float]:
    """What the row says; the signature of a TRL reward function.

    >>> marked_reward(["wrong", "right"], replayed_reward=[0.0, 1.0])
    [0.0, 1.0]
    """
    return [float(reward) for reward in replayed_reward]


@dataclass(frozen=True, slots=True, kw_only=True)
class Marked:
    """A line of the file: a problem, and a completion of which characters ``start`` to ``end`` are the fault."""

    line: int
    row: dict[str, Any]
    """Prompt and privileged context, as the engine is given them."""
    completion: str
    start: int
    end: int
    decisions: tuple[tuple[int, int], ...]
    """Characters that the model decided, so that the form does not say what stands there; empty where unknown."""
    other: str
    """The completion that is better: ``correct``, else the privileged context itself."""
    other_from: str
    """The column that it comes from."""


@dataclass(slots=True)
class Reading:
    """What became of the lines of a file."""

    marked: list[Marked] = field(default_factory=list[Marked])
    aside: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])
    """Line and reason of every one that says nothing of a method."""


def read_marked(path: Path, run: RunConfig, n: int | None = None) -> Reading:
    """The first ``n`` lines that can be used, and which were set aside before them.

    A line that is not of the format stops with an ``InputError`` that names it. What is only of no use (a mark
    that is empty, beyond the completion or not unique, no privileged context) is set aside, and the rest stays.

    >>> read_marked(Path("missing.jsonl"), RunConfig(model="arena", dataset="arena"))
    Traceback (most recent call last):
    gear_rl.errors.InputError: --data: missing.jsonl does not exist
    """
    if not path.is_file():
        raise InputError(f"--data: {path} {'is no file' if path.exists() else 'does not exist'}")
    reading = Reading()
    for number, line in read_text(path):
        where = f"{path.name}, line {number}"
        row = line | {new: dotted(line, old) for new, old in run.columns.items()}
        one = _marked(row, number, where, run)
        if isinstance(one, Marked):
            reading.marked.append(one)
            if len(reading.marked) == n:
                break
        else:
            reading.aside.append((number, one))
    if not reading.marked and not reading.aside:
        raise InputError(f"--data: {path} has no line; write one JSON object per line, such as {EXAMPLE}")
    kinds = {isinstance(one.row["prompt"], str) for one in reading.marked}
    if len(kinds) == 2:
        raise InputError(
            f"--data: {path}: prompt is text in some lines and messages in others; leave out --chat"
        )
    return reading


def _marked(row: Mapping[str, Any], number: int, where: str, run: RunConfig) -> Marked | str:
    """The line, or why it is of no use; ``InputError`` if it is not of the format."""
    for name in ("prompt", "completion", "fault"):
        if name not in row:
            raise InputError(f"{where}: {name}: missing; {did_you_mean(name, row)} (--columns.{name} COLUMN)")
    completion = _text(row["completion"], f"{where}: completion")
    correct = None if row.get("correct") is None else _text(row["correct"], f"{where}: correct")
    span = _span(row["fault"], completion, f"{where}: fault")
    decided = _decisions(row.get("decisions"), completion, f"{where}: decisions")
    why = prompt_fault(row["prompt"]) or (span if isinstance(span, str) else None)
    context = privileged_context(row, run.trainer.get("privileged_column"))
    if why is None and context is None:
        columns = run.trainer.get("privileged_column") or ", ".join(PRIVILEGED_COLUMNS)
        why = f"no privileged context for the teacher; fill one of {columns}"
    if why is None and correct is not None and not correct.strip():
        why = "correct is empty; leave it out, or write a right completion"
    if why is not None or context is None or isinstance(span, str):
        return str(why)
    prompt: Any = row["prompt"]
    if run.chat and isinstance(prompt, str):
        prompt = [{"role": "user", "content": prompt}]
    shown = {"prompt": prompt, "privileged_context": context[1]}
    contrast = run.trainer.get("teacher_contrast")
    if contrast not in (None, NO_CONTRAST, *CONTRASTS):
        shown[contrast] = row.get(contrast)
    other, other_from = (context[1], context[0]) if correct is None else (correct, "correct")
    return Marked(
        line=number,
        row=shown,
        completion=completion,
        start=span[0],
        end=span[1],
        decisions=decided,
        other=other,
        other_from=other_from,
    )


def _text(value: Any, where: str) -> str:
    """A completion as text; one assistant message is its content."""
    if isinstance(value, str):
        return value
    messages = cast(list[Any], value) if isinstance(value, list) else []
    if len(messages) == 1 and isinstance(messages[0], Mapping):
        [message] = cast(list[Mapping[str, Any]], messages)
        said = message.get("content")
        if message.get("role") == "assistant" and isinstance(said, str) and not message.get("tool_calls"):
            return said
    if messages:
        raise InputError(
            f"{where}: {len(messages)} messages with turns or tool calls cannot be replayed without their tools; "
            "give the text of one assistant turn"
        )
    raise InputError(f"{where}: {type(value).__name__} is no completion; write its text")


def _span(value: Any, completion: str, where: str) -> tuple[int, int] | str:
    """Where the marked characters begin and end, or why the mark is of no use."""
    fix = 'write {"start": 3, "end": 7} in characters of the completion, or {"text": "..."}'
    mark = cast(Mapping[str, Any], value) if isinstance(value, Mapping) else {}
    text = mark.get("text")
    if isinstance(text, str) and mark.keys() == {"text"}:
        if not text:
            return "fault: the text is empty"
        count = sum(completion.startswith(text, place) for place in range(len(completion)))
        if count != 1:
            return f"fault: {text[:40]!r} stands {count} times in the completion; mark it with start and end"
        return completion.index(text), completion.index(text) + len(text)
    start, end = mark.get("start"), mark.get("end")
    if mark.keys() != {"start", "end"} or type(start) is not int or type(end) is not int:
        raise InputError(f"{where}: {json.dumps(value)[:80]} marks nothing; {fix}")
    if start >= end:
        return f"fault: empty, from {start} to {end}"
    if start < 0 or end > len(completion):
        return f"fault: from {start} to {end}, but the completion has {len(completion)} characters"
    return start, end


def _decisions(value: Any, completion: str, where: str) -> tuple[tuple[int, int], ...]:
    """The spans of a line's decisions; none where it says nothing of them."""
    spans: list[tuple[int, int]] = []
    for mark in cast(list[Any], value if isinstance(value, list) else [] if value is None else [value]):
        span = _span(mark, completion, where)
        if isinstance(span, str):
            raise InputError(f"{where}: {span}")
        spans.append(span)
    return tuple(spans)


def marked_material(
    path: Path,
    model: str,
    *,
    n: int | None = None,
    max_tokens: int = 4096,
    words: Sequence[str] = (),
    say: Callable[[str], None] = lambda text: None,
) -> Material:
    """The completions of a JSON lines file (`EXAMPLE`), for a model that a name or a folder means.

    ``words`` are settings as ``gear train`` takes them (``--columns.prompt question``). ``say`` gets a line of
    text for each of the first lines that cannot be used, and their number. Raises ``InputError`` if no line is
    left, or if one is not of the format.

    >>> marked_material(Path("mine.jsonl"), "arena", n=0)
    Traceback (most recent call last):
    gear_rl.errors.InputError: --n: 0 is not possible; give 1 or more
    """
    if n is not None and n < 1:
        raise InputError(f"--n: {n} is not possible; give 1 or more")
    if max_tokens < 1:
        raise InputError(f"--max-tokens: {max_tokens}; give 1 or more")
    run = _run(model, words)
    lines = _Lines(path, model, run, max_tokens, say, read_marked(path, run, n))
    lines.report()
    _check(lines.reading.marked, lines.reading.aside, path)
    return Material(
        n=len(lines.reading.marked),
        config=lines.config,
        cases=lines.cases,
        about=lines.about,
        marks=({_REWARD: 0.0}, {_REWARD: 1.0}),
    )


@dataclass(slots=True)
class _Lines:
    """The lines of a file on their way into the engine."""

    path: Path
    model: str
    run: RunConfig
    max_tokens: int
    say: Callable[[str], None]
    reading: Reading
    made: list[tuple[Marked, Case]] = field(default_factory=list[tuple[Marked, Case]])
    """The lines that can be used, as ids; the first trainer makes them."""
    reported: int = 0
    """Lines set aside that were reported."""

    def report(self) -> None:
        """Say which further lines are set aside, as long as they are few."""
        for line, why in self.reading.aside[self.reported : max(self.reported, REPORTED)]:
            self.say(f"line {line}: {why}; set aside")
        self.reported = len(self.reading.aside)

    def config(self, credit: dict[str, Any], folder: str) -> RunConfig:
        """The run of a method; the trainer wants to see its columns, the rows themselves come with the replay."""
        rows = Path(folder) / "rows.jsonl"
        rows.write_text(json.dumps(self.reading.marked[0].row) + "\n", encoding="utf-8")
        reward = f"{__name__}:{marked_reward.__name__}"
        update = {"dataset": str(rows), "columns": {}, "credit": credit, "reward": reward}
        config = self.run.model_copy(update=update)
        config.trainer = {
            **machine_defaults(pretrained=not is_arena(self.run.model), full=False),
            "per_device_train_batch_size": 64 if is_arena(self.run.model) else BATCH,
            "gradient_accumulation_steps": 1,
            "save_strategy": "no",
            **self.run.trainer,
            **REPLAY,
            "privileged_column": None,
            "max_steps": 1,
            "output_dir": folder,
        }
        return config

    def cases(self, trainer: Any, informed: bool) -> list[Case]:
        """What is scored; made with the first trainer's tokenizer and kept for the others."""
        if not self.made:
            for one in self.reading.marked:
                case = _case(one, trainer, self.max_tokens)
                if isinstance(case, Case):
                    self.made.append((one, case))
                else:
                    self.reading.aside.append((one.line, case))
            self.report()
            aside = self.reading.aside
            _check(self.made, aside, self.path)
            if aside:
                self.say(f"{len(aside)} of {len(aside) + len(self.made)} lines are set aside")
        cases = [case for _, case in self.made]
        return cases if informed else _with_contexts_of_others(cases)

    def about(self) -> dict[str, Any]:
        """What the document says of the file."""
        return {
            "what": "absolute credit on completions with one marked fault",
            "data": self.path.name,
            "model": Path(self.model).name or self.model,
            "fault": "marked",
            "n": len(self.made),
            "other_completion": dict(Counter(one.other_from for one, _ in self.made)),
            "set_aside": [{"line": line, "reason": why} for line, why in sorted(self.reading.aside)],
        }


def _run(model: str, words: Sequence[str]) -> RunConfig:
    for key, _ in parse_overrides(words):
        first = key.partition(".")[0]
        if first in _OWN or (first in RunConfig.model_fields and first not in ("columns", "chat")):
            raise InputError(f"--{key}: not possible here; gear score takes --data, --model and --methods")
    run = load_config(None, ["--model", "arena", "--dataset", "arena", "--reward", "arena", *words])
    # The dataset is a file, which says nothing of the arena's task.
    return run.model_copy(
        update={"model": f"arena/{DEFAULT_TASK}" if model == "arena" else model, "lora": None}
    )


def _check(usable: Sequence[Any], aside: Sequence[tuple[int, str]], path: Path) -> None:
    if not usable:
        line, why = aside[0]
        raise InputError(f"--data: none of the {len(aside)} lines of {path} can be used; line {line}: {why}")


def _case(one: Marked, trainer: Any, max_tokens: int) -> Case | str:
    """The completions as ids, and which tokens are the fault; or why the line cannot be used."""
    tokenizer: Any = getattr(trainer.processing_class, "tokenizer", trainer.processing_class)

    def ids(text: str) -> list[int]:
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])

    def ended(written: list[int]) -> list[int]:
        end = tokenizer.eos_token_id
        return written if end is None or written[-1] == end else [*written, end]

    wrong, other = ids(one.completion), ids(one.other)
    prompt, context = one.row["prompt"], one.row["privileged_context"]
    try:
        if trainer.args.teacher_prompt == "render":
            beside = prompt_tokens(trainer, render(prompt, context, trainer.args.template))
        else:
            beside = prompt_tokens(trainer, prompt) + len(ids(context))
    except Exception as error:  # a chat template may raise what it likes
        return f"prompt: cannot be shown to the teacher ({error})"
    places = max_positions(trainer.model.config)
    for name, written in (("completion", wrong), (one.other_from, other)):
        if len(written) > max_tokens:
            return f"{name}: {len(written)} tokens are more than --max-tokens {max_tokens}"
        if places is not None and beside + len(written) > places:
            total = beside + len(written)
            return f"{name}: {total} tokens with prompt and privileged context, but the model has {places} places"
    fault = token_span(tokenizer, one.completion, wrong, one.start, one.end)
    if not fault or not other:
        return "fault: the tokenizer does not say which tokens the marked characters are"
    spans = [token_span(tokenizer, one.completion, wrong, *span) or range(0) for span in one.decisions]
    choices = tuple(any(t in span for span in spans) for t in range(len(ended(wrong))))
    return Case(row=one.row, faulty=[ended(wrong)], right=[ended(other)], fault=fault, choices=choices)


def _with_contexts_of_others(cases: Sequence[Case]) -> list[Case]:
    """The same with the context of the next case that has another one; without those where there is none."""
    own = [str(case.row["privileged_context"]) for case in cases]
    others = wrong_contexts([], own, [], "shuffled")
    return [
        Case(
            row=case.row | {"privileged_context": text},
            faulty=case.faulty,
            right=case.right,
            fault=case.fault,
            choices=case.choices,
        )
        for case, text in zip(cases, others, strict=True)
        if text is not None
    ]


def export(path: Path, task: str, tier: str, n: int) -> int:
    """Write planted cases of a task as such a file; how many. ``InputError`` for an agent's task.

    >>> export(Path("faults.jsonl"), "errands", "easy", 4)
    Traceback (most recent call last):
    gear_rl.errors.InputError: --export: errands has tool calls, ... cannot hold; export chain or codebook
    """
    from gear_rl.arena.model import load
    from gear_rl.runs.arena import known_task, task_of

    chosen_task = known_task(task)
    if chosen_task.agent:
        others = " or ".join(one.name for one in all_tasks() if not one.agent)
        raise InputError(f"--export: {task} has tool calls, which such a file cannot hold; export {others}")
    task_of(task, tier)
    _, tokenizer = load(task=chosen_task.name)
    try:
        chosen = chosen_task.cases(tokenizer, tier, n)
    except ValueError as error:
        raise InputError(f"--{error}") from None
    replace_file(path, "".join(json.dumps(row) + "\n" for row in exported(chosen, tokenizer)).encode())
    return len(chosen)


def exported(chosen: Sequence[Case], tokenizer: Any) -> Iterator[dict[str, Any]]:
    """Cases of one turn as lines of such a file."""
    for case in chosen:
        [wrong], [right] = case.faulty, case.right
        texts = [tokenizer.decode(ids[:-1]) for ids in (wrong, right)]  # without the end
        start, end = (len(tokenizer.decode(wrong[:place])) for place in (case.fault.start, case.fault.stop))
        yield {
            **case.row,
            "completion": texts[0],
            "correct": texts[1],
            "fault": {"start": start, "end": end},
        }
