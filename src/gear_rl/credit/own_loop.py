"""Credit for a training loop of one's own: one call, in one process, without a trainer."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gear_rl.credit.config import PRIVILEGED_COLUMNS, CreditConfig
from gear_rl.credit.step import step as credit_step
from gear_rl.signals.batch import Completions, ForwardRequest, RolloutBatch, left_padded
from gear_rl.signals.engine import OneProcess
from gear_rl.signals.passes import ModelPasses
from gear_rl.signals.teacher import Teacher
from gear_rl.types import Credit, CreditAssigner


def token_advantages(
    model: nn.Module,
    tokenizer: Any,
    prompts: Sequence[Any],
    completions: Sequence[Sequence[int]],
    contexts: Sequence[str | None],
    advantages: Float[Tensor, " B"],
    method: CreditAssigner,
    *,
    config: CreditConfig | None = None,
    group: Sequence[int] | None = None,
    rewards: Sequence[float] | None = None,
    teacher: Teacher | None = None,
    reference: Teacher | None = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    temperature: float = 1.0,
    batch_size: int = 8,
    step: int = 0,
    means: list[float] | None = None,
    log: Callable[[Mapping[str, float]], None] | None = None,
) -> Credit:
    """The advantage of every token of some completions: ``Credit.advantage``, (B, T), and the segments.

    ``prompts`` are texts or chat messages, ``completions`` the token ids that the policy sampled, ``contexts``
    what only the teacher sees, ``advantages`` one number per completion. ``group`` and ``rewards`` are for
    methods that compare siblings. ``teacher`` lends other weights to the teacher (``make_teacher``),
    ``reference`` the initial weights. ``means`` is a list that every call of a run gets, for methods that
    follow a signal (``antisd``). ``log`` receives the ``gear/*`` metrics. Raises ``ValueError`` where numbers of
    completions differ. ``examples/loop.py`` trains with it.
    """
    if isinstance(method, type):
        raise ValueError(f"method: {method!r} is a class; give an object such as Gear()")
    config = (config or CreditConfig()).resolved(method, announce=False)
    pad_id = int(tokenizer.pad_token_id)
    passes = ModelPasses(
        model=model,
        skip_first_tokens=config.teacher_skip_first_tokens,
        pad_id=pad_id,
        teacher=teacher or Teacher(),
        reference=reference or Teacher(),
        temperature=temperature,
        batch_size=batch_size,
    )
    means = [] if means is None else means
    engine = _Engine(tokenizer, passes, chat_template_kwargs or {}, log or (lambda metrics: None), means)
    device, count = advantages.device, len(completions)
    width = max(map(len, completions), default=0)
    ids = torch.full((count, width), pad_id, device=device)
    attention = torch.zeros_like(ids)
    for b, own in enumerate(completions):
        ids[b, : len(own)] = torch.tensor(own, device=device)
        attention[b, : len(own)] = 1
    shown = engine.render(prompts, None)
    given = [0.0] * count if rewards is None else list(rewards)
    column = config.privileged_column or PRIVILEGED_COLUMNS[0]
    batch = RolloutBatch(
        step=step,
        completions=Completions(ids=ids, attention=attention, mask=attention.bool()),
        student=left_padded(shown, pad_id, device),
        prompts=prompts,
        rows=[{column: context} for context in contexts],
        messages=[tokenizer.decode(own, skip_special_tokens=True) for own in completions],
        advantage_B=advantages,
        rewards=given,
        rewards_BR=torch.tensor(given, device=device)[:, None],
        group=range(count) if group is None else group,
        first=0,
        num_rollouts=count,
    )
    return credit_step(batch, method, engine, config).credit


@dataclass
class _Engine(OneProcess):
    """A model and its tokenizer as an ``Engine``, which writes no records."""

    tokenizer: Any
    passes: ModelPasses
    chat_template_kwargs: Mapping[str, Any]
    sink: Callable[[Mapping[str, float]], None]
    means: list[float]
    max_positions, record_sink = None, None

    def render(
        self, prompts: Sequence[Any], chat_template_kwargs: Mapping[str, Any] | None
    ) -> list[list[int]]:
        more = self.chat_template_kwargs if chat_template_kwargs is None else chat_template_kwargs
        options = {"add_generation_prompt": True, "return_dict": False, **more}
        return [
            list(self.tokenizer(prompt)["input_ids"])
            if isinstance(prompt, str)
            else self.tokenizer.apply_chat_template(prompt, **options)
            for prompt in prompts
        ]

    def forward(self, request: ForwardRequest) -> dict[str, Tensor]:
        return self.passes.run(request)

    def log(self, metrics: Mapping[str, float]) -> None:
        self.sink(metrics)
