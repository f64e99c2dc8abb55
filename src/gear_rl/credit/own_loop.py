"""Credit for a training loop of one's own: one call, in one process, without a trainer."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gear_rl.credit.config import PRIVILEGED_COLUMNS, CreditConfig, check_teacher
from gear_rl.credit.prompts import naming_refused
from gear_rl.credit.step import step as credit_step
from gear_rl.signals.batch import Completions, ForwardRequest, RolloutBatch, left_padded
from gear_rl.signals.engine import OneProcess
from gear_rl.signals.passes import ModelPasses
from gear_rl.signals.signal import names_of, needs_teacher
from gear_rl.signals.teacher import Teacher
from gear_rl.tensor.lists import int_list
from gear_rl.traits import distillation_of
from gear_rl.types import Credit, CreditAssigner

SIBLINGS = {"group_B", "reward_B", "rewards_BR", "success_B", "transport_distance"}
"""Signals of a completion's group."""


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
    group: Sequence[Any] | Tensor | None = None,
    rewards: Sequence[float | None] | None = None,
    sampled: Sequence[Sequence[bool]] | None = None,
    step_scores: Sequence[Any] | None = None,
    turn_rewards: Sequence[Any] | None = None,
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

    ``prompts`` are texts or chat messages, ``completions`` lists of token ids, ``contexts`` what only the teacher
    sees, ``advantages`` one number per completion. ``sampled`` marks the tokens that the policy sampled; None
    marks all.
    Methods that compare siblings need ``group``, a name per completion, and ``rewards``. ``step_scores`` and
    ``turn_rewards`` are what a reward function would log. ``teacher`` has the weights that the method asks for
    (``make_teacher``), ``reference`` the initial ones. ``means`` is a list that every call of a run gets, for
    methods that follow a signal (``antisd``). ``log`` receives the ``gear/*`` metrics. Raises ``ValueError`` for
    what is missing, or of another size. ``examples/loop.py`` trains with it.
    """
    if isinstance(method, type) or not isinstance(method, CreditAssigner):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ValueError(
            f"method: {method!r} is no method; give an object such as Gear() or method_of('gear')"
        )
    config = (config or CreditConfig()).resolved(method, announce=False)
    _check(method, config, teacher, has_siblings=group is not None and rewards is not None)
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
        ids[b, : len(own)] = torch.as_tensor(own, device=device)
        attention[b, : len(own)] = 1
    mask = attention.bool()
    for b, own in enumerate(sampled or ()):
        mask[b, : len(own)] &= torch.as_tensor(own, device=device, dtype=torch.bool)
    if advantages.shape != (count,):
        raise ValueError(f"advantages: shape {tuple(advantages.shape)}; give one number for each of {count}")
    shown = engine.render(prompts, None)
    given = [0.0] * count if rewards is None else list(rewards)
    groups: list[Any] = [*range(count)]
    if group is not None:
        groups = int_list(group) if isinstance(group, Tensor) else [*group]
    number = {name: g for g, name in enumerate(dict.fromkeys(groups))}
    column = config.privileged_column or PRIVILEGED_COLUMNS[0]
    batch = RolloutBatch(
        step=step,
        completions=Completions(ids=ids, attention=attention, mask=mask),
        student=left_padded(shown, pad_id, device),
        prompts=prompts,
        rows=[{column: context} for context in contexts],
        messages=[tokenizer.decode(own, skip_special_tokens=True) for own in completions],
        advantage_B=advantages,
        rewards=given,
        rewards_BR=torch.tensor([reward or 0.0 for reward in given], device=device)[:, None],
        group=[number[name] for name in groups],
        first=0,
        num_rollouts=count,
        step_scores=step_scores,
        turn_rewards=turn_rewards,
    )
    return credit_step(batch, method, engine, config).credit


def _check(
    method: CreditAssigner, config: CreditConfig, teacher: Teacher | None, *, has_siblings: bool
) -> None:
    """Raise ``ValueError`` for a method that would silently give another credit than its own."""
    kind, sources = config.teacher_model_kind, config.privileged_sources or []
    if distillation_of(method) is not None:
        raise ValueError(
            f"method: {method.name!r} distils in the loss, which is yours; set sampled=True (opsd, sdpo, sdpg), "
            "which makes it an advantage"
        )
    if not has_siblings and (SIBLINGS & {*names_of(method.needs)} or "sibling" in sources):
        raise ValueError(f"group, rewards: {method.name!r} compares the completions of a group; give both")
    if teacher is None and needs_teacher(method.needs):
        check_teacher(config)
        if kind != "live":
            raise ValueError(
                f"teacher: {method.name!r} asks for a teacher of kind {kind!r}; before the first step make one "
                f"with make_teacher({kind!r}, model), or give config=CreditConfig(teacher_model_kind='live')"
            )


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

        def ids_of(prompt: Any) -> list[int]:
            if isinstance(prompt, str):
                return list(self.tokenizer(prompt)["input_ids"])
            return self.tokenizer.apply_chat_template(prompt, **options)

        with naming_refused(prompts, ids_of):
            return [ids_of(prompt) for prompt in prompts]

    def forward(self, request: ForwardRequest) -> dict[str, Tensor]:
        return self.passes.run(request)

    def log(self, metrics: Mapping[str, float]) -> None:
        self.sink(metrics)
