"""Credit for a training loop of one's own: a model as an engine, and one call, in one process."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gear_rl.credit.credit_config import (
    CONTRASTS,
    NO_CONTRAST,
    PRIVILEGED_COLUMNS,
    CreditConfig,
    check_teacher,
)
from gear_rl.credit.plan import CreditResult
from gear_rl.credit.prompts import naming_refused
from gear_rl.credit.step import step
from gear_rl.engine import ForwardRequest, OneProcess, messages_of
from gear_rl.errors import warn_once
from gear_rl.model.forwards import max_positions, unwrap_model
from gear_rl.model.served import ServedTeacher
from gear_rl.model.teacher import Teacher
from gear_rl.rollouts import RolloutBatch, left_padded, right_padded
from gear_rl.signals.passes import ModelPasses
from gear_rl.signals.signal import names_of
from gear_rl.signals.table import needs_context, needs_teacher
from gear_rl.traits import distillation_of
from gear_rl.types import CreditAssigner

SIBLINGS = {"group_B", "reward_B", "rewards_BR", "success_B", "transport_distance"}
"""Signals of a completion's group."""


@dataclass
class LocalEngine(OneProcess):
    """A model and its tokenizer as an ``Engine``, made once for a run; it writes no records.

    Raises ``ValueError`` for a teacher that is none and a tokenizer without a pad token.
    """

    model: nn.Module
    tokenizer: Any
    teacher: Teacher | None = None
    """The weights that the method asks for (``make_teacher``), or a ``ServedTeacher``; None for the own."""
    reference: Teacher | None = None
    """The weights that the run began with; only for ``reference_logprob``."""
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    temperature: float = 1.0
    """Of the sampling; with another one the signals are those of another policy."""
    batch_size: int = 8
    """Completions in a forward pass."""
    seed: int = 0
    """Of the noise on embeddings, with the step added."""
    teacher_model: nn.Module | None = None
    """Another model, over the same vocabulary, that is the teacher."""
    tools: Sequence[Sequence[Any]] | None = None
    """The functions that the prompt of each rollout shows; None for those of ``chat_template_kwargs``."""
    state: dict[str, Any] = field(default_factory=dict[str, Any])
    """What the method remembers from batch to batch."""
    metrics: dict[str, float] = field(default_factory=dict[str, float])
    """The ``gear/*`` metrics of the last call."""
    record_sink = None

    def __post_init__(self) -> None:
        for name, value in (("teacher", self.teacher), ("reference", self.reference)):
            if value is not None and not isinstance(value, Teacher):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise ValueError(f"{name}: {value!r:.50} is no Teacher; give one, or leave it out")
        if self.batch_size < 1:
            raise ValueError(f"batch_size: {self.batch_size}; give 1 or more")
        if self.tokenizer.pad_token_id is None:
            raise ValueError("tokenizer: has no pad token; set tokenizer.pad_token = tokenizer.eos_token")
        if isinstance(self.teacher, ServedTeacher):
            self.teacher.check_use(self.tokenizer, self.temperature)

    def rollouts(
        self,
        rows: Sequence[Mapping[str, Any]],
        completions: Sequence[Sequence[int]],
        advantages: Float[Tensor, " B"] | Sequence[float],
        *,
        group: Sequence[Any] | Tensor | None = None,
        rewards: Sequence[float | None] | None = None,
        sampled: Sequence[Sequence[bool]] | Tensor | None = None,
        logged: Mapping[str, Sequence[Any]] | None = None,
        step: int = 0,
    ) -> RolloutBatch:
        """The batch of some rollouts, each with one entry in every argument.

        A row has the ``prompt``, text or chat messages, and what only the teacher sees, in a column such as
        ``solution``. ``completions`` are lists of token ids; ``sampled`` marks the tokens that the policy
        sampled, None all; a tool wrote the others. ``group`` names the prompt, for methods that compare siblings.
        ``logged`` has what a reward function would log as "feedback", "turn_rewards" or "step_scores". Raises
        ``ValueError`` that names the argument of another size or kind.
        """
        ids = _ids_of(completions, self.model)
        count, pad_id = len(ids), int(self.tokenizer.pad_token_id)
        rows = _list_of("rows", rows, count)
        for row in rows:
            if not (isinstance(row, Mapping) and _is_prompt(cast(Mapping[str, Any], row).get("prompt"))):
                raise ValueError(
                    f"rows: {row!r:.50} has no prompt; give it text or a list of messages as `prompt`"
                )
        prompts = [row["prompt"] for row in rows]
        marks = None if sampled is None else _list_of("sampled", sampled, count)
        for b, own in enumerate(marks or ()):
            _list_of("sampled", own, len(ids[b]), f"tokens of completion {b}")
        advantages = _advantages_of(advantages, count, self.model)
        device = advantages.device
        given = [None] * count if rewards is None else _list_of("rewards", rewards, count)
        groups = [*range(count)] if group is None else _list_of("group", group, count)
        number = {name: g for g, name in enumerate(dict.fromkeys(groups))}
        done = right_padded(ids, marks, pad_id, device)
        each = zip(done.ids, done.mask, done.attention, strict=True)
        texts = [self.tokenizer.decode(own, skip_special_tokens=True) for own in ids]
        shown = self.render(prompts, None)
        if not all(shown):
            raise ValueError(
                f"rows: prompt {shown.index([])} has no token; give every completion a prompt of one or more"
            )
        return RolloutBatch(
            step=step,
            completions=done,
            student=left_padded(shown, pad_id, device),
            prompts=prompts,
            rows=rows,
            messages=[messages_of(*own, self.tokenizer) for own in each] if marks else texts,
            advantage_B=advantages,
            rewards=given,
            rewards_BR=_tensor_of("rewards", [reward or 0.0 for reward in given]).to(device)[:, None],
            group=[number[name] for name in groups],
            first=0,
            num_rollouts=count,
            logged={name: _list_of(name, values, count) for name, values in (logged or {}).items()},
        )

    @property
    def passes(self) -> ModelPasses:
        """How the model's passes are run."""
        return ModelPasses(
            model=self.model,
            pad_id=int(self.tokenizer.pad_token_id),
            teacher=self.teacher or Teacher(),
            reference=self.reference or Teacher(),
            temperature=self.temperature,
            batch_size=self.batch_size,
            seed=self.seed,
            teacher_model=self.teacher_model,
        )

    @property
    def max_positions(self) -> int | None:
        return max_positions(unwrap_model(self.model).config)

    def render(
        self, prompts: Sequence[Any], chat_template_kwargs: Mapping[str, Any] | None
    ) -> list[list[int]]:
        more = self.chat_template_kwargs if chat_template_kwargs is None else chat_template_kwargs
        options = {"add_generation_prompt": True, "return_dict": False, **more}

        def ids_of(prompt: Any, tools: Sequence[Any] | None = None) -> list[int]:
            if isinstance(prompt, str):
                return list(self.tokenizer(prompt)["input_ids"])
            own = options if tools is None else {**options, "tools": tools or None}
            return self.tokenizer.apply_chat_template(prompt, **own)

        with naming_refused(prompts, ids_of):
            return [*map(ids_of, prompts, self.tools or [None] * len(prompts))]

    def forward(self, request: ForwardRequest) -> dict[str, Tensor]:
        return self.passes.run(request)

    def log(self, metrics: Mapping[str, float]) -> None:
        self.metrics.update(metrics)


def token_advantages(
    rollouts: RolloutBatch, method: CreditAssigner, engine: LocalEngine, config: CreditConfig | None = None
) -> CreditResult:
    """The credit of every token of some rollouts, ``result.credit.advantage`` (B, T), and the signals behind it.

    ``engine.rollouts`` makes the batch; ``engine.metrics`` has the step's metrics afterwards. Raises
    ``ValueError`` for a method that would silently give another credit than its own: it lacks its teacher, its
    group or the first weights, or distils in the loss. ``examples/loop.py`` trains with it.

    >>> from gear_rl.arena.model import load
    >>> from gear_rl.methods import Uniform
    >>> engine = LocalEngine(*load())
    >>> rollouts = engine.rollouts([{"prompt": "1 +1"}], [[5, 6]], advantages=[0.5])
    >>> token_advantages(rollouts, Uniform(), engine).credit.advantage
    tensor([[0.5000, 0.5000]])
    """
    if isinstance(method, type) or not isinstance(method, CreditAssigner):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ValueError(
            f"method: {method!r} is no method; give an object such as Gear() or build_method('gear')"
        )
    config = (config or CreditConfig()).resolved(method, announce=False)
    _check(rollouts, method, engine, config)
    engine.metrics.clear()
    return step(rollouts, method, engine, config)


def _check(rollouts: RolloutBatch, method: CreditAssigner, engine: LocalEngine, config: CreditConfig) -> None:
    """Raise ``ValueError`` for a method that would silently give another credit than its own."""
    kind, names = config.teacher_model_kind, {*names_of(method.needs)}
    if distillation_of(method) is not None:
        raise ValueError(
            f"method: {method.name!r} distils in the loss, which is yours; set sampled=True (opsd, sdpo; sdpg "
            "with anchor='none'), which makes it an advantage"
        )
    contrast, context = config.teacher_contrast, needs_context(method)
    sources = {*(config.privileged_sources or ()), contrast} if context else set[str | None]()
    alone = len({*rollouts.group}) == len(rollouts.group) > 1
    rewarded = rollouts.has_reward().any()
    if "function" in sources:
        raise ValueError(
            "privileged_sources: 'function' is for a trainer; put what it returns into a column of the rows"
        )
    if (SIBLINGS & names or "sibling" in sources) and (alone or not rewarded):
        raise ValueError(f"group, rewards: {method.name!r} compares the completions of a group; give both")
    if "feedback" in sources and not rewarded:
        raise ValueError(f"rewards: {method.name!r} shows the teacher feedback on failures; give rewards")
    columns = {"privileged_column": config.privileged_column} if "row" in sources else {}
    if context and contrast not in (*CONTRASTS, NO_CONTRAST):
        columns["teacher_contrast"] = contrast
    for setting, column in columns.items():
        if column is not None and not any(column in row for row in rollouts.rows):
            raise ValueError(f"{setting}: no row has {column!r}; give a column of the rows")
    known = {*PRIVILEGED_COLUMNS, "reward_model", config.privileged_column}
    if sources - {contrast, "environment"} == {"row"} and not any(map(known.intersection, rollouts.rows)):
        warn_once(
            f"rows: none of a batch has what the teacher of {method.name!r} is shown, so this is GRPO; give a "
            f"column {', '.join(PRIVILEGED_COLUMNS)}, or another as privileged_column"
        )
    if engine.reference is None and "reference_logprob" in names:
        raise ValueError(
            f"reference: {method.name!r} reads the first weights; make them with make_teacher('base', model)"
        )
    if engine.teacher is None and engine.teacher_model is None and needs_teacher(method):
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


def _advantages_of(values: Any, count: int, model: nn.Module) -> Float[Tensor, " B"]:
    """One number for each completion, where the model computes; ``ValueError`` for another shape."""
    if not isinstance(values, Tensor):
        values = _tensor_of("advantages", _list_of("advantages", values, count))
    if values.shape != (count,):
        raise ValueError(f"advantages: shape {tuple(values.shape)}; give one number for each of {count}")
    if not values.isfinite().all():
        raise ValueError(
            "advantages: NaN or Inf; give finite numbers, such as those of group_relative_advantage"
        )
    if values.dtype != torch.float64:  # small differences of advantages would be lost in bfloat16
        values = values.float()
    on_cpu = values.device.type == "cpu"  # as rewards are
    return values.to(next(model.parameters()).device) if on_cpu else values


def _ids_of(completions: Any, model: nn.Module) -> list[list[int]]:
    """The token ids of every completion; ``ValueError`` for what is no token of the model's."""
    policy: Any = unwrap_model(model)
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
                "ids, such as tokenizer(text, add_special_tokens=False).input_ids, and mark by sampled what is "
                "not trained"
            )
    return [[*own] for own in listed]
