"""TRL's trainer as an ``Engine`` of the credit step: passes in its own process, accelerate between processes."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

import torch
from accelerate.utils import gather_object
from torch import Tensor

from gear_rl.credit.batch import ForwardRequest
from gear_rl.credit.engine import Tokenizer
from gear_rl.credit.metrics import SegmentCheck
from gear_rl.credit.passes import PASS_SIGNALS, ModelPasses
from gear_rl.engines.trl.checks import SHARDED, gathered_head
from gear_rl.engines.trl.trainer_type import Trainer
from gear_rl.records import Record
from gear_rl.signals.forwards import max_positions, unwrapped
from gear_rl.signals.score import StudentStates, TeacherStates

T = TypeVar("T")


class TRLEngine:
    """``trainer`` as an engine. Hidden states of passes that have been run already are not computed again.

    ``in_loss`` says that this process computes for itself, for a micro-batch in its loss: other processes may
    have another number of forwards there (weights are not sharded then).

    >>> from types import SimpleNamespace
    >>> trainer = SimpleNamespace(accelerator=SimpleNamespace(process_index=1, num_processes=2))
    >>> engine = TRLEngine(trainer)
    >>> engine.rank, engine.world_size, "divergence" in engine.signals
    (1, 2, True)
    """

    signals = PASS_SIGNALS

    def __init__(
        self,
        trainer: Trainer,
        *,
        student_states: StudentStates | None = None,
        teacher_states: TeacherStates | None = None,
        in_loss: bool = False,
    ) -> None:
        self.trainer, self.in_loss = trainer, in_loss
        self.student_states, self.teacher_states = student_states, teacher_states

    @property
    def tokenizer(self) -> Tokenizer:
        return cast(Tokenizer, self.trainer._tokenizer)

    @property
    def max_positions(self) -> int | None:
        return max_positions(unwrapped(self.trainer.model).config)

    @property
    def segment_check(self) -> SegmentCheck:
        return self.trainer.segment_check

    @property
    def rank(self) -> int:
        return self.trainer.accelerator.process_index

    @property
    def world_size(self) -> int:
        return self.trainer.accelerator.num_processes

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
        trainer = self.trainer
        args = trainer.args
        return ModelPasses(
            model=trainer.model,
            config=args,
            pad_id=cast(int, self.tokenizer.pad_token_id),
            teacher=trainer.ready_teacher(),
            reference=trainer.ready_reference(),
            temperature=trainer.temperature,
            batch_size=args.credit_batch_size or args.per_device_train_batch_size,
            seed=args.seed,
            largest=int if self.in_loss else self._largest,
            teacher_model=trainer.teacher_model,
            head_context=gathered_head,
            share_prompts=trainer.sharding not in SHARDED,
        )

    def forward(self, request: ForwardRequest) -> dict[str, Tensor]:
        return self.passes.run(
            request, student_states=self.student_states, teacher_states=self.teacher_states
        )

    def gather(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.trainer.accelerator.gather(x))

    def gather_objects(self, items: list[T]) -> list[T]:
        return cast(list[T], gather_object(items))

    def log(self, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self.trainer._metrics["train"][name].append(value)

    @property
    def record_sink(self) -> Callable[[list[Record]], object] | None:
        return self._publish if self.trainer.record_subscribers else None

    def _publish(self, records: list[Record]) -> None:
        for subscriber in self.trainer.record_subscribers:
            subscriber(records)

    def _largest(self, count: int) -> int:
        device = self.trainer.accelerator.device
        return int(self.gather(torch.tensor(count, device=device)).max())
