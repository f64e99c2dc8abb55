"""TRL's trainer as an ``Engine`` of the credit step: passes in its own process, accelerate between processes."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
import trl
from accelerate.utils import gather_object
from torch import Tensor, nn

from gear_rl.engines.trl.config import SHARDED
from gear_rl.records import Record
from gear_rl.signals.batch import ForwardRequest
from gear_rl.signals.engine import Tokenizer
from gear_rl.signals.forwards import max_positions, unwrapped
from gear_rl.signals.passes import ModelPasses
from gear_rl.signals.score import StudentStates, TeacherStates

if TYPE_CHECKING:
    from gear_rl.engines.trl.trainer import GEARTrainer

T = TypeVar("T")


class TRLEngine:
    """``trainer`` as an engine. Hidden states of passes that have been run already are not computed again.

    ``in_loss`` says that this process computes for itself, for a micro-batch in its loss: other processes may
    have another number of forwards there (weights are not sharded then).
    """

    student_states: StudentStates | None = None
    teacher_states: TeacherStates | None = None

    def __init__(self, trainer: "GEARTrainer", *, in_loss: bool = False) -> None:
        self.trainer, self.in_loss = trainer, in_loss
        self.tokenizer = cast(Tokenizer, trainer._tokenizer)
        self.max_positions = max_positions(unwrapped(trainer.model).config)
        self.rank = int(trainer.accelerator.process_index)
        self.world_size = int(trainer.accelerator.num_processes)

    def render(
        self, prompts: Sequence[Any], chat_template_kwargs: Mapping[str, Any] | None
    ) -> list[list[int]]:
        students = self.trainer.chat_template_kwargs
        try:
            if chat_template_kwargs is not None:
                self.trainer.chat_template_kwargs = cast(dict[str, Any], chat_template_kwargs)
            return self.trainer._tokenize_prompts(list(prompts))[0]
        finally:
            self.trainer.chat_template_kwargs = students

    @property
    def passes(self) -> ModelPasses:
        """How the model's passes are run, at its present weights."""
        trainer, args = self.trainer, self.trainer.args
        return ModelPasses(
            model=trainer.model,
            skip_first_tokens=args.teacher_skip_first_tokens,
            pad_id=cast(int, self.tokenizer.pad_token_id),
            teacher=trainer.ready_teacher(),
            reference=trainer.ready_reference(),
            temperature=trainer.temperature,
            batch_size=args.credit_batch_size or args.per_device_train_batch_size,
            seed=args.seed,
            largest=int if self.in_loss else self._largest,
            teacher_model=trainer.teacher_model,
            # Under DeepSpeed ZeRO-3 the head's weights are only whole inside TRL's gathering context.
            head_context=_gathered_head if trainer.sharding == "DEEPSPEED" else None,
            share_prompts=trainer.sharding not in SHARDED,
        )

    def forward(self, request: ForwardRequest) -> dict[str, Tensor]:
        passes, student, teacher = self.passes, self.student_states, self.teacher_states
        return passes.run(request, student_states=student, teacher_states=teacher)

    def gather(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.trainer.accelerator.gather(x))

    def gather_objects(self, items: list[T]) -> list[T]:
        return cast(list[T], gather_object(items))

    def log(self, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self.trainer._metrics["train"][name].append(value)
        self.trainer.segment_check(self.trainer.credit, metrics, self.rank)

    @property
    def record_sink(self) -> Callable[[list[Record]], object] | None:
        return self._publish if self.trainer.record_subscribers else None

    def _publish(self, records: list[Record]) -> None:
        for subscriber in self.trainer.record_subscribers:
            subscriber(records)

    def _largest(self, count: int) -> int:
        device = self.trainer.accelerator.device
        return int(self.gather(torch.tensor(count, device=device)).max())


def _gathered_head(model: nn.Module) -> Any:
    gather: Any = getattr(trl.trainer.utils, "maybe_gather_lm_head_ctx", None)
    if gather is None:  # TRL 1.14
        return nullcontext()
    layer: Any = cast(Any, model).get_output_embeddings()
    return gather(*(p for p in (layer.weight, getattr(layer, "bias", None)) if p is not None))
