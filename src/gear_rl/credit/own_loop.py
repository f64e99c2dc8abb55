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
from gear_rl.signals.batch import ForwardRequest, RolloutBatch, left_padded, right_padded
from gear_rl.signals.engine import OneProcess
from gear_rl.signals.forwards import max_positions, unwrapped
from gear_rl.signals.passes import ModelPasses
from gear_rl.signals.signal import names_of, needs_teacher
from gear_rl.signals.teacher import Teacher
from gear_rl.traits import distillation_of
from gear_rl.types import Credit, CreditAssigner

SIBLINGS = {"group_B", "reward_B", "rewards_BR", "success_B", "transport_distance"}
"""Signals of a completion's group."""


def token_advantages(
    model: nn.Module,
    tokenizer: Any,
    prompts: Sequence[Any],
    completions: Sequence[Sequence[int]],
    contexts: Sequence[Any],
    advantages: Float[Tensor, " B"] | Sequence[float],
    method: CreditAssigner,
    *,
    config: CreditConfig | None = None,
    group: Sequence[Any] | Tensor | None = None,
    rewards: Sequence[float | None] | None = None,
    sampled: Sequence[Sequence[bool]] | Tensor | None = None,
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
    sees (None for nothing), ``advantages`` one number per completion. ``sampled`` marks the tokens that the
    policy sampled; None marks all. Without the ``temperature`` of the sampling, signals are those of another
    policy.
    Methods that compare siblings need ``group``, a name per completion, and ``rewards``. ``step_scores`` and
    ``turn_rewards`` are what a reward function would log. ``teacher`` has the weights that the method asks for
    (``make_teacher``), ``reference`` the initial ones. ``means`` is a list that every call of a run gets, for
    methods that follow a signal (``antisd``). ``log`` is called with the ``gear/*`` metrics. Raises
    ``ValueError`` that names the argument that is missing or of another size. ``examples/loop.py`` trains with
    it.
    """
    if isinstance(method, type) or not isinstance(method, CreditAssigner):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ValueError(
            f"method: {method!r} is no method; give an object such as Gear() or build_method('gear')"
        )
    objects: dict[str, Any] = {"config": config, "teacher": teacher, "reference": reference}
    for name, value in objects.items():
        kind = CreditConfig if name == "config" else Teacher
        if value is not None and not isinstance(value, kind):
            raise ValueError(f"{name}: {value!r:.50} is no {kind.__name__}; give one, or leave it out")
    config = (config or CreditConfig()).resolved(method, announce=False)
    _check(method, config, teacher, reference, has_siblings=group is not None and rewards is not None)
    ids = _ids_of(completions, model)
    count = len(ids)
    each = {"prompts": prompts, "contexts": contexts, "advantages": advantages, "group": group}
    each |= {"rewards": rewards, "sampled": sampled, "step_scores": step_scores, "turn_rewards": turn_rewards}
    lists = {
        name: _list_of(name, values, count)
        for name, values in each.items()
        if values is not None or name in ("prompts", "contexts", "advantages")
    }
    pairs = zip(lists.get("sampled", ()), ids, strict=False)
    marks = [
        _list_of("sampled", own, len(of), f"tokens of completion {b}") for b, (own, of) in enumerate(pairs)
    ]
    wrong = next((prompt for prompt in lists["prompts"] if not _is_prompt(prompt)), None)
    if wrong is not None:
        raise ValueError(f"prompts: {wrong!r:.50} is neither text nor a list of messages; give one of them")
    if batch_size < 1:
        raise ValueError(f"batch_size: {batch_size}; give 1 or more")
    if log is not None and not callable(log):
        raise ValueError(
            f"log: {log!r} is not called; give a function of the metrics, such as metrics.update"
        )
    if tokenizer.pad_token_id is None:
        raise ValueError("tokenizer: has no pad token; set tokenizer.pad_token = tokenizer.eos_token")
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
    engine = LocalEngine(tokenizer, passes, chat_template_kwargs or {}, log or (lambda metrics: None), means)
    if not isinstance(advantages, Tensor):
        advantages = _tensor_of("advantages", lists["advantages"])
    if advantages.device.type == "cpu":  # as rewards are
        advantages = advantages.to(next(model.parameters()).device)
    device = advantages.device
    if advantages.shape != (count,):
        raise ValueError(f"advantages: shape {tuple(advantages.shape)}; give one number for each of {count}")
    shown, given = engine.render(lists["prompts"], None), lists.get("rewards", [0.0] * count)
    groups = lists.get("group", [*range(count)])
    number = {name: g for g, name in enumerate(dict.fromkeys(groups))}
    column = config.privileged_column or PRIVILEGED_COLUMNS[0]
    batch = RolloutBatch(
        step=step,
        completions=right_padded(ids, marks or None, pad_id, device),
        student=left_padded(shown, pad_id, device),
        prompts=lists["prompts"],
        rows=[{column: context} for context in lists["contexts"]],
        messages=[tokenizer.decode(own, skip_special_tokens=True) for own in ids],
        advantage_B=advantages,
        rewards=given,
        rewards_BR=_tensor_of("rewards", [reward or 0.0 for reward in given]).to(device)[:, None],
        group=[number[name] for name in groups],
        first=0,
        num_rollouts=count,
        step_scores=lists.get("step_scores"),
        turn_rewards=lists.get("turn_rewards"),
    )
    return credit_step(batch, method, engine, config).credit


def _check(
    method: CreditAssigner,
    config: CreditConfig,
    teacher: Teacher | None,
    reference: Teacher | None,
    *,
    has_siblings: bool,
) -> None:
    """Raise ``ValueError`` for a method that would silently give another credit than its own."""
    kind, sources = config.teacher_model_kind, config.privileged_sources or []
    if distillation_of(method) is not None:
        raise ValueError(
            f"method: {method.name!r} distils in the loss, which is yours; set sampled=True (opsd, sdpo; sdpg "
            "with anchor='none'), which makes it an advantage"
        )
    if not has_siblings and (SIBLINGS & {*names_of(method.needs)} or "sibling" in sources):
        raise ValueError(f"group, rewards: {method.name!r} compares the completions of a group; give both")
    if reference is None and "reference_logprob" in names_of(method.needs):
        raise ValueError(
            f"reference: {method.name!r} reads the first weights; make them with make_teacher('base', model)"
        )
    if teacher is None and needs_teacher(method.needs):
        check_teacher(config)
        if kind != "live":
            raise ValueError(
                f"teacher: {method.name!r} asks for a teacher of kind {kind!r}; before the first step make one "
                f"with make_teacher({kind!r}, model), or give config=CreditConfig(teacher_model_kind='live')"
            )


def _is_list(values: Any) -> bool:
    return isinstance(values, Sequence) and not isinstance(values, str)


def _is_prompt(value: Any) -> bool:
    return isinstance(value, str) or (_is_list(value) and all(isinstance(one, Mapping) for one in value))


def _list_of(name: str, values: Any, count: int, of: str = "completions") -> list[Any]:
    """The entries of a list, a tensor or an array; ``ValueError`` that names one without ``count`` of them."""
    values = values.tolist() if hasattr(values, "tolist") else values
    if not _is_list(values):
        raise ValueError(
            f"{name}: {values!r:.50} is no list; give one with an entry for each of {count} {of}"
        )
    if len(values) != count:
        raise ValueError(f"{name}: {len(values)} entries for {count} {of}; give one for each")
    return [*values]


def _tensor_of(name: str, values: list[Any]) -> Tensor:
    try:
        return torch.tensor(values, dtype=torch.float32)
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(
            f"{name}: {values!r:.50} is no list of numbers; give one for each completion"
        ) from None


def _ids_of(completions: Any, model: nn.Module) -> list[list[int]]:
    """The token ids of every completion; ``ValueError`` for what is no token of the model's."""
    policy: Any = unwrapped(model)
    below = int(policy.get_input_embeddings().weight.shape[0])
    listed = [own.tolist() if hasattr(own, "tolist") else own for own in completions]
    if not listed:
        raise ValueError("completions: there are none; give one or more, or leave the step out")
    for b, own in enumerate(listed):
        tokens = own if _is_list(own) and not isinstance(completions, str) else [str(own)]
        wrong = next((t for t in tokens if not hasattr(t, "__index__") or not 0 <= int(t) < below), None)
        if wrong is not None:
            raise ValueError(
                f"completions: {wrong!r:.50} in completion {b} is no token of the model's {below}; give lists of "
                'ids, such as tokenizer(text)["input_ids"], and mark by sampled what is not trained'
            )
    return [[*own] for own in listed]


@dataclass
class LocalEngine(OneProcess):
    """A model and its tokenizer as an ``Engine``, which writes no records."""

    tokenizer: Any
    passes: ModelPasses
    chat_template_kwargs: Mapping[str, Any]
    sink: Callable[[Mapping[str, float]], None]
    means: list[float]
    record_sink = None

    @property
    def max_positions(self) -> int | None:
        return max_positions(unwrapped(self.passes.model).config)

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
