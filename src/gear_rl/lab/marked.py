"""A user's completions with a marked fault, for ``gear score --data``: from the file to cases and their model."""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch

from gear_rl.arena.task import Case
from gear_rl.credit.contexts import privileged_context, shuffled_contexts
from gear_rl.credit.credit_config import CONTRASTS, NO_CONTRAST, PRIVILEGED_COLUMNS, CreditConfig
from gear_rl.credit.own_loop import LocalEngine
from gear_rl.credit.teacher_prompts import render
from gear_rl.data.rewards.text import value_at
from gear_rl.data.rows import prompt_fault
from gear_rl.data.sources import read_text
from gear_rl.engines.models import load_causal_lm, load_frozen_teacher, load_tokenizer
from gear_rl.errors import InputError, did_you_mean, input_errors
from gear_rl.lab.material import Material, Pair
from gear_rl.model.forwards import max_positions
from gear_rl.runs.machine import has_bfloat16, use_few_threads
from gear_rl.runs.model_wheels import resolve_model
from gear_rl.runs.run_config import RunConfig, load_config, parse_overrides
from gear_rl.runs.trl_run import arena_model, is_arena

EXAMPLE = (
    '{"prompt": "12 + 30 - 2", "solution": "12 + 30 = 42, 42 - 2 = 40", '
    '"completion": "12 + 30 = 52, 52 - 2 = 50", "fault": {"text": "= 52"}}'
)
"""A line of such a file."""
BATCH = 8
"""Completions through the model at a time, unless the user sets it."""
REPORTED = 10
"""Lines set aside that are reported one by one; the others are counted."""
SETTINGS: dict[str, Any] = {
    **{field.name: field.type for field in fields(CreditConfig) if not field.name.startswith("record_")},
    "chat_template_kwargs": dict[str, Any],
    "model_init_kwargs": dict[str, Any],
    "per_device_train_batch_size": int,
    "seed": int,
    "temperature": float,
    "teacher_model": str,
}
"""The settings of a run that scoring reads, beside ``columns`` and ``chat``."""
Loaded = Callable[[], tuple[LocalEngine, CreditConfig]]
"""The engine, and what its teacher is shown; the first call loads the model."""


class UnusableError(ValueError):
    """Why a line cannot be scored."""


def marked_material(
    path: Path,
    model: str,
    *,
    n: int | None = None,
    max_tokens: int = 4096,
    words: Sequence[str] = (),
    say: Callable[[str], None] = lambda text: None,
) -> Material:
    """The first ``n`` lines that can be used of a JSON lines file (`EXAMPLE`), for a model by name or folder.

    ``words`` are settings as ``gear train`` takes them (``--columns.prompt question``). ``say`` gets a line of
    text for each of the first lines that cannot be used, and their number. ``InputError`` if no line is left.

    >>> marked_material(Path("mine.jsonl"), "arena", n=0)
    Traceback (most recent call last):
    gear_rl.errors.InputError: --n: 0 is not possible; give 1 or more
    """
    for option, number in (("--n", n), ("--max-tokens", max_tokens)):
        if number is not None and number < 1:
            raise InputError(f"{option}: {number} is not possible; give 1 or more")
    run = _run_to_score(model, words)
    batch = int(run.trainer.get("per_device_train_batch_size", 64 if is_arena(run.model) else BATCH))
    loaded: Loaded = cache(lambda: _load(run, batch))  # so a file of no use is refused before
    cases: list[Case] = []
    better = Counter[str]()
    aside: list[dict[str, Any]] = []
    for number, row in _read_rows(path, run):
        try:
            case, other_from = _case(row, run, loaded, max_tokens)
        except UnusableError as why:
            aside.append({"line": number, "reason": str(why)})
            if len(aside) <= REPORTED:
                say(f"line {number}: {why}; set aside")
            continue
        cases.append(case)
        better[other_from] += 1
        if len(cases) == n:
            break
    _check_cases(cases, aside, path)
    if aside:
        say(f"{len(aside)} of {len(aside) + len(cases)} lines are set aside")
    engine, config = loaded()
    return Material(
        engine=engine,
        config=config,
        batch=batch,
        pairs=[_pair(case, engine) for case in cases],
        blind=[_pair(case, engine) for case in _blind_cases(cases)],
        rewards=lambda pairs, credit: torch.tensor([[0.0], [1.0]] * len(pairs)),
        about={
            "what": "absolute credit on completions with one marked fault",
            "data": path.name,
            "model": Path(model).name or model,
            "fault": "marked",
            "n": len(cases),
            "other_completion": dict(better),
            "set_aside": aside,
        },
    )


def _run_to_score(model: str, words: Sequence[str]) -> RunConfig:
    """The settings of ``words`` for a model; ``InputError`` for those that scoring does not read."""
    for key, _ in parse_overrides(words):
        name = key.partition(".")[0]
        if name not in (*SETTINGS, "columns", "chat"):
            why = did_you_mean(name, SETTINGS) if name not in RunConfig.model_fields else "nothing is trained"
            raise InputError(f"--{key}: not possible here; {why}")
    # The dataset is a file, which names no task of the arena.
    named = ["--model", "arena", "--dataset", "arena", "--reward", "arena"]
    run = load_config(None, [*named, *words], types=SETTINGS)
    run.model = model
    return run


def _read_rows(path: Path, run: RunConfig) -> Iterator[tuple[int, dict[str, Any]]]:
    """The number of each line and its columns, also under the names that the run gives them."""
    if not path.is_file():
        raise InputError(f"--data: {path} {'is no file' if path.exists() else 'does not exist'}")
    for number, line in read_text(path):
        yield number, line | {new: value_at(line, old) for new, old in run.columns.items()}


def _check_cases(cases: Sequence[Case], aside: Sequence[Mapping[str, Any]], path: Path) -> None:
    if not cases and not aside:
        raise InputError(f"--data: {path} has no line; write one JSON object per line, such as {EXAMPLE}")
    if not cases:
        first = "line {line}: {reason}".format_map(aside[0])
        raise InputError(f"--data: none of the {len(aside)} lines of {path} can be used; {first}")
    if len({isinstance(case.row["prompt"], str) for case in cases}) == 2:
        raise InputError(
            f"--data: {path}: prompt is text in some lines and messages in others; leave out --chat"
        )


def _blind_cases(cases: Sequence[Case]) -> list[Case]:
    """With the context of the next line that has another one; without those where there is none."""
    others = shuffled_contexts([(str(case.row["privileged_context"]), n) for n, case in enumerate(cases)])
    return [
        replace(case, row=case.row | {"privileged_context": text})
        for case, text in zip(cases, others, strict=True)
        if text is not None
    ]


def _load(run: RunConfig, batch: int) -> tuple[LocalEngine, CreditConfig]:
    """The model of a run and its tokenizer, on the accelerator if there is one, and what a teacher is shown."""
    model, tokenizer, settings = (arena_model if is_arena(run.model) else _pretrained_model)(run)
    template = settings.pop("chat_template_kwargs", {}) | (run.trainer.get("chat_template_kwargs") or {})
    settings |= run.trainer
    named, teacher = settings.get("teacher_model"), None
    if named is not None:
        vocabulary = int(model.get_output_embeddings().weight.shape[0])
        dtype = {"dtype": str(model.dtype).removeprefix("torch.")}
        teacher = load_frozen_teacher(resolve_model(named, "teacher_model"), dtype, tokenizer, vocabulary)
    engine = LocalEngine(
        model.eval(),
        tokenizer,
        chat_template_kwargs=template,
        batch_size=settings.get("credit_batch_size") or batch,
        temperature=settings.get("temperature", 1.0),
        seed=settings.get("seed", 42),  # as transformers has it
        teacher_model=teacher if teacher is None else teacher.to(model.device),
    )
    config = CreditConfig(**{name: settings[name] for name in settings if hasattr(CreditConfig, name)})
    config.privileged_column = None  # read into the row already
    return engine, config


def _pretrained_model(run: RunConfig) -> tuple[Any, Any, dict[str, Any]]:
    use_few_threads(pretrained=True)
    name = resolve_model(run.model)
    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    dtype = "bfloat16" if device is not None or has_bfloat16() else "float32"
    options = {"dtype": dtype} | dict(run.trainer.get("model_init_kwargs") or {})
    with input_errors("--model: "):
        model, tokenizer = load_causal_lm(name, options), load_tokenizer(name)
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return model if device is None else model.to(device), tokenizer, {}


def _pair(case: Case, engine: LocalEngine) -> Pair:
    decode = engine.tokenizer.decode
    texts = [decode(ids, skip_special_tokens=True) for [ids] in (case.faulty, case.right)]
    if not isinstance(case.row["prompt"], str):
        texts = [[{"role": "assistant", "content": text}] for text in texts]
    return Pair(case=case, row=case.row, messages=(texts[0], texts[1]))


def _case(row: Mapping[str, Any], run: RunConfig, loaded: Loaded, max_tokens: int) -> tuple[Case, str]:
    """A line's completions as ids, and the column of the better one: ``correct``, else the teacher's context."""
    for name in ("prompt", "completion", "fault"):
        if name not in row:
            raise UnusableError(f"{name}: missing; {did_you_mean(name, row)} (--columns.{name} COLUMN)")
    completion = _text(row["completion"], "completion")
    fault = _span(row["fault"], completion, "fault")
    shown, other_from = _shown_row(row, run)
    other = shown["privileged_context"]
    if row.get("correct") is not None:
        other_from, other = "correct", _text(row["correct"], "correct")
    decisions: Any = row.get("decisions") or []
    marks: list[Any] = decisions if isinstance(decisions, list) else [decisions]
    spans = [_span(mark, completion, "decisions") for mark in marks]
    engine, config = loaded()
    tokenizer: Any = engine.tokenizer
    wrong, better = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in (completion, other))
    _check_lengths(shown, {"completion": len(wrong), other_from: len(better)}, engine, config, max_tokens)
    fault_tokens = token_span(tokenizer, completion, *fault)
    if not fault_tokens or not better:
        raise UnusableError("fault: the tokenizer does not say which tokens the marked characters are")
    wrong, better = ([*ids, *_end_token(ids, tokenizer)] for ids in (wrong, better))
    decided = {t for span in spans for t in token_span(tokenizer, completion, *span) or ()}
    choices = tuple(t in decided for t in range(len(wrong)))
    return Case(row=shown, faulty=[wrong], right=[better], fault=fault_tokens, choices=choices), other_from


def _end_token(ids: Sequence[int], tokenizer: Any) -> list[int]:
    end = tokenizer.eos_token_id
    return [] if end is None or ids[-1] == end else [end]


def _shown_row(row: Mapping[str, Any], run: RunConfig) -> tuple[dict[str, Any], str]:
    """Prompt and privileged context, as the engine gets them, and the context's column."""
    if fault := prompt_fault(row["prompt"]):
        raise UnusableError(fault)
    context = privileged_context(row, run.trainer.get("privileged_column"))
    if context is None:
        columns = run.trainer.get("privileged_column") or ", ".join(PRIVILEGED_COLUMNS)
        raise UnusableError(f"no privileged context for the teacher; fill one of {columns}")
    prompt: Any = row["prompt"]
    if run.chat and isinstance(prompt, str):
        prompt = [{"role": "user", "content": prompt}]
    shown = {"prompt": prompt, "privileged_context": context[1]}
    contrast = run.trainer.get("teacher_contrast")
    if contrast not in (None, NO_CONTRAST, *CONTRASTS):
        shown[contrast] = row.get(contrast)
    return shown, context[0]


def _check_lengths(
    shown: Mapping[str, Any],
    num_tokens: Mapping[str, int],
    engine: LocalEngine,
    config: CreditConfig,
    max_tokens: int,
) -> None:
    """`UnusableError` for completions, of so many tokens, that do not fit behind the teacher's prompt."""
    prompt, context = shown["prompt"], shown["privileged_context"]
    rendered = config.teacher_prompt == "render"
    message = config.teacher_context_message or "first"
    try:
        shown_prompt = render(prompt, context, config.template, message) if rendered else prompt
        [ids] = engine.render([shown_prompt], None)
    except Exception as error:  # a chat template may raise what it likes
        raise UnusableError(f"prompt: cannot be shown to the teacher ({error})") from None
    beside = len(ids) + 1  # the token that ends the completion
    if not rendered:
        beside += len(engine.tokenizer(context, add_special_tokens=False)["input_ids"])
    places = max_positions(engine.model.config)
    for name, count in num_tokens.items():
        if count > max_tokens:
            raise UnusableError(f"{name}: {count} tokens are more than --max-tokens {max_tokens}")
        if places is not None and beside + count > places:
            raise UnusableError(
                f"{name}: {beside + count} tokens with prompt and privileged context, but the model has "
                f"{places} places"
            )


def _text(value: Any, name: str) -> str:
    """A completion as text; one assistant message is its content."""
    match value:
        case [{"role": "assistant", "content": str(text)} as message] if not message.get("tool_calls"):
            value = text
    if not isinstance(value, str) or not value.strip():
        raise UnusableError(
            f"{name}: is not the text of one assistant turn; turns with tool calls cannot be replayed without "
            "their tools"
        )
    return value


def _span(mark: Any, completion: str, name: str) -> tuple[int, int]:
    """The first of the marked characters, and the one after the last."""
    match mark:
        case {"text": str(text)} if text:
            count = sum(completion.startswith(text, place) for place in range(len(completion)))
            if count != 1:
                raise UnusableError(
                    f"{name}: {text[:40]!r} stands {count} times in the completion; mark it with start and end"
                )
            return completion.index(text), completion.index(text) + len(text)
        case {"start": int(start), "end": int(end)} if 0 <= start < end <= len(completion):
            return start, end
        case _:
            raise UnusableError(
                f"{name}: {json.dumps(mark)[:80]} marks nothing of {len(completion)} characters; write "
                '{"start": 3, "end": 7} in characters of the completion, or {"text": "..."}'
            )


def token_span(tokenizer: Any, text: str, start: int, end: int) -> range | None:
    """The places of the tokens of ``text`` that overlap its characters ``start`` to ``end``.

    A token that writes a part of a character overlaps it. None where no token overlaps, or the tokenizer has no
    offsets.

    >>> from gear_rl.arena.model import load
    >>> token_span(load()[1], "37 +8 = 45", 3, 5)
    range(1, 2)
    """
    if not getattr(tokenizer, "is_fast", False):
        return None
    offsets = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    overlapping = [t for t, (begin, stop) in enumerate(offsets) if max(begin, start) < min(stop, end)]
    return range(overlapping[0], overlapping[-1] + 1) if overlapping else None
