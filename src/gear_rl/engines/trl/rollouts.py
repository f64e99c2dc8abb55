"""What of a batch of TRL's rollouts the teacher is shown, and how its tool calls went."""

# TRL and transformers are only partly typed; what crosses this seam is checked by the tests instead.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportPrivateUsage=false

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

from accelerate.utils import gather_object

from gear_rl.engines.rollouts import rollouts_of
from gear_rl.engines.tools import FAILURES, control_pattern, defused, secret_of
from gear_rl.engines.trl.signals import needs_context
from gear_rl.signals.contexts import NO_CONTRAST, SOURCES, Rollout, find_contexts, wrong_contexts
from gear_rl.signals.privileged import TeacherPrompt, fill, render, splice
from gear_rl.signals.score import Completions, Prompts, left_padded
from gear_rl.tensor.segments import turn_ids

logger = logging.getLogger(__name__)


def contexts_of(
    trainer: Any, rows: list[dict[str, Any]], completions: Completions
) -> tuple[list[tuple[str, str] | None], list[str | None] | None]:
    """The privileged context of every rollout, and a wrong one where a contrast is asked for."""
    tokenizer: Any = trainer._tokenizer
    special = control_pattern(tokenizer, markup=False)
    first = trainer.accelerator.process_index * len(rows)
    place = range(first, first + len(rows))
    local = rollouts_of(
        completions=trainer._rollout_completions,
        ids=completions.ids,
        mask=completions.mask,
        reward=[trainer._batch_rewards[i] for i in place],
        group=[i // trainer.num_generations for i in place],
        secrets=_secrets(trainer, len(rows)),
        feedback=trainer._feedback,
        decode=lambda ids: tokenizer.decode(ids, skip_special_tokens=True),
    )
    # Written by the model and by tools: what looks like an end of turn must not end one in the teacher's prompt.
    local = [
        replace(r, text=defused(r.text, special), feedback=r.feedback and defused(r.feedback, special))
        for r in local
    ]
    among = "sibling" in {*trainer._sources, trainer.args.teacher_contrast}
    everyone = cast(list[Rollout], gather_object(local)) if among else local
    offset = first if among else 0
    success, column = trainer.args.success_reward, trainer.args.privileged_column
    found = find_contexts(
        rows,
        local,
        everyone,
        trainer._sources,
        first=offset,
        column=column,
        function=trainer._privileged,
        success_reward=success,
    )
    contrast = trainer.args.teacher_contrast
    if contrast == NO_CONTRAST:
        return found, None
    texts = [None if pair is None else pair[1] for pair in found]
    if contrast == "shuffled":  # a process may hold one group only, whose context is the same in every row
        everywhere = cast(list[str | None], gather_object(texts))
        return found, wrong_contexts([], everywhere, [], contrast)[first : first + len(rows)]
    return found, wrong_contexts(rows, texts, everyone, contrast, first=offset, success_reward=success)


def _secrets(trainer: Any, count: int) -> list[str | None]:
    """What the environments tell the teacher; one that fails to is reported, and the run goes on."""
    if not trainer.environments or "environment" not in trainer._sources:
        return [None] * count
    secrets: list[str | None] = []
    for environment in trainer.environments:
        try:
            secrets.append(secret_of(environment))
        except Exception as error:
            name = type(environment).__name__
            logger.warning("%s.privileged_context() failed: %s: %s", name, type(error).__name__, error)
            secrets.append(None)
    return secrets


def teacher_prompts(trainer: Any, contexts: Sequence[str], student: Prompts) -> Prompts:
    """What the teacher is shown, one prompt per row; a row without context is shown the student's."""
    template = trainer.args.template
    if trainer.args.teacher_prompt == "splice":
        tokenizer: Any = trainer._tokenizer
        own = [
            ids[kept.bool()].tolist() for ids, kept in zip(student.ids_BP, student.attention_BP, strict=True)
        ]
        hints = [fill(template, privileged_context=context) if context else "" for context in contexts]
        hint_ids = [
            # The context may hold control tokens of the chat; as part of a hint they are plain text.
            tokenizer(hint, add_special_tokens=False, split_special_tokens=True)["input_ids"] if hint else []
            for hint in hints
        ]
        prompts = [splice(hint, ids) for hint, ids in zip(hint_ids, own, strict=True)]
    else:
        shown = [
            render(prompt, context, template) if context else prompt
            for prompt, context in zip(trainer._rollout_prompts, contexts, strict=True)
        ]
        student_kwargs = trainer.chat_template_kwargs
        try:
            if trainer.args.teacher_chat_template_kwargs is not None:
                trainer.chat_template_kwargs = cast(dict[str, Any], trainer.args.teacher_chat_template_kwargs)
            prompts = [TeacherPrompt(tuple(ids)) for ids in trainer._tokenize_prompts(shown)[0]]
        finally:
            trainer.chat_template_kwargs = student_kwargs
    return left_padded(
        prompts, pad_id=cast(int, trainer._tokenizer.pad_token_id), device=student.ids_BP.device
    )


def tool_report(trainer: Any, completions: Completions) -> list[dict[str, int]]:
    """For each rollout of this process how many calls it made and how many failed of which kind."""
    if not trainer.tools:
        return [{} for _ in trainer._rollout_completions]
    known = [
        {*sync, *anew} for sync, anew in zip(trainer._sync_tool_dicts, trainer._async_tool_dicts, strict=True)
    ]
    turn_id = turn_ids(completions.mask)
    last = [
        trainer._tokenizer.decode(ids[(turn == turn.max()) & (turn >= 0)])
        for ids, turn in zip(completions.ids, turn_id, strict=True)
    ]
    return [
        trainer._guard.report(messages, text, sorted(names), trainer._control)
        for messages, text, names in zip(trainer._rollout_completions, last, known, strict=True)
    ]


def log_tools(trainer: Any, tools: list[dict[str, int]], sources: list[str | None]) -> None:
    """How many calls of the batch failed of which kind, and where the contexts came from, over all processes."""
    metrics = trainer._metrics["train"]
    everywhere = cast(list[dict[str, int]], gather_object(tools)) if trainer.tools else []
    for kind in FAILURES if trainer.tools else ():
        metrics[f"gear/tools/{kind}"].append(float(sum(counts.get(kind, 0) for counts in everywhere)))
    if needs_context(trainer.credit):
        found = cast(list[str | None], gather_object(sources))
        # Whatever is no source by name is the column of a row.
        kinds = [name if name in SOURCES or name is None else "row" for name in found]
        for source in trainer._sources:
            metrics[f"gear/context/{source}"].append(float(kinds.count(source)))
