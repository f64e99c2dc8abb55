"""The prompt that shows the teacher a privileged context. Scores nothing.

A teacher's prompt has a type of its own, which nothing that generates accepts.
"""

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

from jaxtyping import Bool
from torch import Tensor

from gear_rl.credit.contexts import PrivilegedFunction, Prompt, contexts_of, sources_of
from gear_rl.credit.credit_config import DEFAULT_TEMPLATE, CreditConfig
from gear_rl.credit.prompts import check_untemplated
from gear_rl.engine import Engine, plain_ids
from gear_rl.rollouts import Prompts, RolloutBatch, left_padded
from gear_rl.signals.table import needs_context
from gear_rl.tensor.lists import int_list
from gear_rl.types import CreditAssigner, Signal

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TeacherPrompts:
    """What the teacher sees of each rollout."""

    tried: Sequence[str]
    """The sources, in order; empty if the method reads no context."""
    sources: Sequence[str | None]
    """Where the context came from: a column or a name of ``SOURCES``; None where none is shown."""
    contexts: Sequence[str | None]
    prompts: Sequence[Prompts]
    """The teacher's prompts, and those with the wrong context where there is a contrast."""
    missing_B: Bool[Tensor, " B"]
    """True where there is no context, or no wrong one for the contrast."""
    long_B: Bool[Tensor, " B"]
    """True where one of them is too long to be shown."""


def prompts_for(
    batch: RolloutBatch,
    method: CreditAssigner,
    signals: Sequence[Signal],
    engine: Engine,
    config: CreditConfig,
    privileged: PrivilegedFunction | None,
) -> TeacherPrompts:
    """The teacher's prompts of a batch; none for a method that reads no context. Every process must call this.

    ``signals`` are those that the method needs.
    """
    mask, reads_context = batch.completions.mask, needs_context(method)
    rendered = reads_context and config.teacher_prompt == "render"
    check_untemplated(batch.prompts, engine.tokenizer, reads_context=rendered)
    missing_B, long_B = mask.new_zeros(len(mask)), mask.new_zeros(len(mask))
    prompts = list[Prompts]()
    if not reads_context:
        nothing = [None] * len(mask)
        return TeacherPrompts(
            tried=(), sources=nothing, contexts=nothing, prompts=(), missing_B=missing_B, long_B=long_B
        )
    sources, contexts, wrong = contexts_of(batch, engine, config, privileged)
    # Only a teacher's signals are contrasted, not a distillation term or an answer's confidence.
    for texts in (contexts, wrong if any(signal.teacher for signal in signals) else None):
        if texts is not None:
            shown, long = teacher_prompts(batch, engine, config, texts)
            prompts.append(shown)
            missing_B |= missing_B.new_tensor([text is None for text in texts])
            long_B |= long_B.new_tensor(long)
    if long_B.any():
        warn_of_long(config.max_privileged_tokens, engine.max_positions)
    sources, contexts = (
        [None if over else value for value, over in zip(values, int_list(long_B), strict=True)]
        for values in (sources, contexts)
    )
    return TeacherPrompts(
        tried=sources_of(config, privileged),
        sources=sources,
        contexts=contexts,
        prompts=prompts,
        missing_B=missing_B,
        long_B=long_B,
    )


def teacher_prompts(
    batch: RolloutBatch, engine: Engine, config: CreditConfig, contexts: Sequence[str | None]
) -> tuple[Prompts, list[bool]]:
    """The teacher's prompt for each rollout, and whether its context was too long to be shown.

    Without a context, or with one that is too long, it is the student's prompt. "splice" puts the context's ids
    before the verbatim ids of the student's prompt.
    """
    student, template = batch.student, config.template
    long = too_long(contexts, engine, config)
    contexts = [None if over else text for text, over in zip(contexts, long, strict=True)]

    def own_ids(b: int) -> tuple[int, ...]:
        return tuple(int_list(student.ids_BP[b][student.attention_BP[b].bool()]))

    if config.teacher_prompt == "splice":
        texts = [fill(template, privileged_context=text) if text else "" for text in contexts]
        hints = [plain_ids(engine.tokenizer, text) for text in texts]
        begin = getattr(engine.tokenizer, "bos_token_id", None)
        prompts = [splice_hint(hint, own_ids(b), begin) for b, hint in enumerate(hints)]
    else:
        shown = [
            render(prompt, text, template, config.teacher_context_message or "first") if text else prompt
            for prompt, text in zip(batch.prompts, contexts, strict=True)
        ]
        if config.teacher_context_message is None and any(
            sum(message.get("role") == "user" for message in prompt) > 1
            for prompt, text in zip(batch.prompts, contexts, strict=True)
            if text and not isinstance(prompt, str)
        ):
            warn_of_several()
        template_kwargs = cast(Mapping[str, Any] | None, config.teacher_chat_template_kwargs)
        prompts = [tuple(ids) for ids in engine.render(shown, template_kwargs)]
    places = engine.max_positions
    for b, length in enumerate(int_list(batch.completions.attention.sum(-1))):
        if places is not None and contexts[b] and len(prompts[b]) + length > places:
            long[b] = True
            prompts[b] = own_ids(b)
    pad_id = cast(int, engine.tokenizer.pad_token_id)
    return left_padded(prompts, pad_id, student.ids_BP.device), long


def splice_hint(hint: Sequence[int], prompt: Sequence[int], begin: int | None) -> tuple[int, ...]:
    """The hint's ids before the prompt's, but behind the token that begins every text (Llama, Gemma).

    >>> splice_hint([7, 8], [1, 5], begin=1), splice_hint([7, 8], [5], begin=1)
    ((1, 7, 8, 5), (7, 8, 5))
    """
    first = 1 if begin is not None and prompt and prompt[0] == begin else 0
    return (*prompt[:first], *hint, *prompt[first:])


def too_long(contexts: Sequence[str | None], engine: Engine, config: CreditConfig) -> list[bool]:
    """Which contexts have more tokens than ``max_privileged_tokens`` or the model's positions."""
    limits = (config.max_privileged_tokens, engine.max_positions)
    limit = min((limit for limit in limits if limit is not None), default=None)
    known = {
        text: len(text.encode("utf-8", "surrogatepass")) > limit  # a token has at least one byte
        and len(plain_ids(engine.tokenizer, text)) > limit
        for text in dict.fromkeys(contexts)
        if text and limit is not None
    }
    return [known.get(text or "", False) for text in contexts]


@lru_cache(maxsize=64)
def warn_of_long(limit: int | None, places: int | None) -> None:
    """Once for each pair of limits; a metric counts every step's."""
    logger.warning(
        "a privileged context has more tokens than the teacher may be shown (max_privileged_tokens %s; positions "
        "of the model, which also hold prompt and completion: %s). Its completions keep their GRPO advantage; "
        "gear/fallback/long_context counts them",
        limit,
        "unknown" if places is None else places,
    )


@lru_cache(maxsize=1)
def warn_of_several() -> None:
    """Once: the message that the context belongs to may be another."""
    logger.warning(
        "a prompt has several user messages, and the teacher reads the privileged context in the first; set "
        "teacher_context_message to last where the problem stands there (few-shot examples, a conversation), or "
        "to first"
    )


def render(prompt: Prompt, context: str, template: str = DEFAULT_TEMPLATE, message: str = "first") -> Prompt:
    """The prompt with the template's text in place of its first user message (else its first system message).

    With ``message="last"`` it is the last such message.
    ``{prompt}`` and ``{privileged_context}`` stand for the message's own text and the context; other braces are
    kept. The given prompt is not changed. Raises ``ValueError`` if no message has a text.

    >>> render([{"role": "user", "content": "2+2"}], "4", "{prompt} (it is {privileged_context})")
    [{'role': 'user', 'content': '2+2 (it is 4)'}]
    """
    if isinstance(prompt, str):
        return fill(template, prompt=prompt, privileged_context=context)
    roles = [message.get("role") for message in prompt]
    role = next((role for role in ("user", "system") if role in roles), None)
    if role is None:
        raise ValueError(
            f"prompt: no user or system message to hold the privileged context, only {roles}; add one, or use "
            "teacher_prompt='splice'"
        )
    place = roles.index(role) if message == "first" else len(roles) - 1 - roles[::-1].index(role)
    content: Any = prompt[place].get("content")
    if isinstance(content, str):
        filled = fill(template, prompt=content, privileged_context=context)
    else:
        filled = [dict(block) for block in content or ()]
        block = next((block for block in filled if block.get("type") == "text"), None)
        if block is None:
            raise ValueError(
                f"prompt: the message has no text to hold the privileged context, only {content!r}; give it a "
                "block of text, or use teacher_prompt='splice'"
            )
        block["text"] = fill(template, prompt=str(block["text"]), privileged_context=context)
    return [*prompt[:place], {**prompt[place], "content": filled}, *prompt[place + 1 :]]


def fill(template: str, **values: str) -> str:
    """The template with each ``{name}`` replaced by its value, all at once: a value is never searched.

    >>> fill("{prompt} | {other}", prompt="write {prompt}")
    'write {prompt} | {other}'
    """
    return re.sub(r"\{(" + "|".join(values) + r")\}", lambda match: values[match[1]], template)
