"""TRL's trainer as an ``Engine`` of the credit step: its passes, and the weights that they are run with."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
import trl
from accelerate.utils import gather_object
from torch import Tensor, nn
from transformers.trainer_callback import TrainerCallback
from trl.models.utils import prepare_deepspeed, prepare_fsdp

from gear_rl.credit.prompts import naming_refused
from gear_rl.engine import ForwardRequest, Tokenizer
from gear_rl.engines.models import (
    check_reward_model,
    load_frozen_teacher,
    reward_models,
    vocabulary_size,
)
from gear_rl.engines.trl.config import SHARDED
from gear_rl.engines.trl.images import Images
from gear_rl.model.forwards import max_positions, unwrap_model
from gear_rl.model.served import ServedTeacher
from gear_rl.model.teacher import AdapterFreeTeacher, CopyTeacher, Teacher, TeacherKind, make_teacher
from gear_rl.records import Record
from gear_rl.signals.passes import KeptStates, ModelPasses
from gear_rl.signals.signal import names_of
from gear_rl.signals.table import needs_context, needs_passes

if TYPE_CHECKING:
    from gear_rl.engines.trl.trainer import GEARTrainer

T = TypeVar("T")


class HeldWeights(TrainerCallback):
    """The weights that passes use beside the student's own, each made on first use: before the first step.

    ``starts_as_base``: the model without its adapter is the one that the run began with (``begins_as_nothing``).
    """

    def __init__(self, trainer: "GEARTrainer", *, starts_as_base: bool) -> None:
        self._trainer, self._starts_as_base = trainer, starts_as_base
        self.teacher_model: nn.Module | None = None
        """The model that the setting ``teacher_model`` names."""
        for read in reward_models(trainer.credit):
            check_reward_model(read, trainer._tokenizer)
        url = trainer.args.teacher_url
        self._served: ServedTeacher | None = None
        if url is not None and needs_context(trainer.credit):
            self._served = ServedTeacher(
                url,
                top_k=trainer.args.teacher_top_k,
                timeout=trainer.args.teacher_url_timeout,
                on_failure=trainer.args.teacher_url_failure,
            )
            self._served.check_use(trainer._tokenizer, trainer.temperature)
        name = trainer.args.teacher_model
        if name is None and url is None and trainer.args.teacher_model_kind == "base":
            # DeepSpeed owns the parameters, so the first weights are loaded once more and divided as they are.
            name = (
                trainer.model.name_or_path if trainer.sharding == "DEEPSPEED" and not starts_as_base else None
            )
        if name is not None and needs_context(trainer.credit):
            dtype = {"dtype": str(trainer.model.dtype).removeprefix("torch.")}
            teacher = load_frozen_teacher(name, dtype, trainer._tokenizer, vocabulary_size(trainer.model))
            self.teacher_model = _divide_model(teacher, trainer)

    @cached_property
    def teacher(self) -> Teacher:
        """The teacher's, of ``teacher_model_kind``."""
        trainer, args = self._trainer, self._trainer.args
        if self._served is not None:
            return self._served
        if not needs_context(trainer.credit) or self.teacher_model is not None:
            return Teacher()  # a copy that no pass reads would only cost memory
        kind = cast(TeacherKind, args.teacher_model_kind)
        if kind == "base":
            return self._first_weights()
        rate, steps = cast(float, args.teacher_update_rate), cast(int, args.teacher_sync_steps)
        return make_teacher(kind, trainer.model, rate, steps)

    @cached_property
    def reference(self) -> Teacher:
        """Those that the run began with, for a method that needs ``reference_logprob``."""
        needed = "reference_logprob" in names_of(self._trainer.credit.needs)
        return self._first_weights() if needed else Teacher()

    def _first_weights(self) -> Teacher:
        # Not `make_teacher`: a run that is resumed has trained weights by now.
        return AdapterFreeTeacher() if self._starts_as_base else CopyTeacher(self._trainer.model)

    def by_file(self) -> dict[str, Any]:
        """What a checkpoint holds beside TRL's own files, by the file's name."""
        return {"teacher.safetensors": self.teacher, "reference.safetensors": self.reference}

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        _ = self.teacher, self.reference
        if needs_passes(self._trainer.credit):
            _ = self._trainer.padding_moves  # by two forwards, on every process

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.teacher.update(self._trainer.model, state.global_step)


class TRLEngine:
    """``trainer`` as an engine."""

    student_states: KeptStates | None = None
    """Of the student's pass, where TRL has run it already."""
    images: Images | None = None
    """Of the rollouts under way."""

    def __init__(self, trainer: "GEARTrainer") -> None:
        self.trainer = trainer
        self.tokenizer = cast(Tokenizer, trainer._tokenizer)
        self.max_positions = max_positions(unwrap_model(trainer.model).config)
        self.rank = int(trainer.accelerator.process_index)
        self.world_size = int(trainer.accelerator.num_processes)
        self.record_sink = self._publish if trainer.record_subscribers else None
        self.state = cast(dict[str, Any], trainer.run_state.setdefault("method", {}))

    def render(
        self, prompts: Sequence[Any], chat_template_kwargs: Mapping[str, Any] | None
    ) -> list[list[int]]:
        students = self.trainer.chat_template_kwargs
        try:
            if chat_template_kwargs is not None:
                self.trainer.chat_template_kwargs = cast(dict[str, Any], chat_template_kwargs)
            rendered = self.trainer._rendered
            with naming_refused(prompts, rendered), self.trainer.rollouts.row_tools_shown(self.trainer):
                return self.trainer._tokenize_prompts(list(prompts))[0]
        finally:
            self.trainer.chat_template_kwargs = students

    @property
    def passes(self) -> ModelPasses:
        """How the model's passes are run, at its present weights."""
        trainer, args, held = self.trainer, self.trainer.args, self.trainer.held_weights
        return ModelPasses(
            model=trainer.model,
            pad_id=cast(int, self.tokenizer.pad_token_id),
            teacher=held.teacher,
            reference=held.reference,
            temperature=trainer.temperature,
            batch_size=args.credit_batch_size or args.per_device_train_batch_size,
            seed=args.seed,
            largest=self._largest,
            teacher_model=held.teacher_model,
            # Under DeepSpeed ZeRO-3 the head's weights are only whole inside TRL's gathering context.
            head_context=_gathered_head if trainer.sharding == "DEEPSPEED" else None,
            share_prompts=trainer.sharding not in SHARDED and self.images is None,
            images=self.images,
        )

    def forward(self, request: ForwardRequest) -> dict[str, Tensor]:
        values = self.passes.run(request, student_states=self.student_states)
        teacher = self.trainer.held_weights.teacher
        if isinstance(teacher, ServedTeacher) and request.teachers:
            self.log({"gear/teacher/unserved": float(self._sum(teacher.unserved))})
        return values

    def gather(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.trainer.accelerator.gather(x))

    def gather_objects(self, items: list[T]) -> list[T]:
        return cast(list[T], gather_object(items))

    def log(self, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self.trainer._metrics["train"][name].append(value)
        self.trainer.segment_check(self.trainer.credit, metrics, self.rank)

    def _publish(self, records: list[Record]) -> None:
        for subscriber in self.trainer.record_subscribers:
            subscriber(records)

    def _sum(self, count: int) -> int:
        return int(self.gather(torch.tensor([count], device=self.trainer.accelerator.device)).sum())

    def _largest(self, count: int) -> int:
        device = self.trainer.accelerator.device
        return int(self.gather(torch.tensor(count, device=device)).max())


def _divide_model(teacher: nn.Module, trainer: "GEARTrainer") -> nn.Module:
    """The frozen model, divided among processes as TRL divides its reference."""
    if trainer.sharding == "DEEPSPEED":
        return prepare_deepspeed(teacher, trainer.accelerator)
    if trainer.sharding == "FSDP":
        return cast(nn.Module, prepare_fsdp(teacher, trainer.accelerator))
    return teacher.to(trainer.accelerator.device)


def _gathered_head(model: nn.Module) -> Any:
    gather: Any = getattr(trl.trainer.utils, "maybe_gather_lm_head_ctx", None)
    if gather is None:  # TRL 1.14
        return nullcontext()
    layer: Any = cast(Any, unwrap_model(model)).get_output_embeddings()
    return gather(*(p for p in (layer.weight, getattr(layer, "bias", None)) if p is not None))
