"""TRL's trainer as an ``Engine`` of the credit step, and TRL's own forwards in place of the student's pass."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
import trl
from accelerate.utils import gather_object
from jaxtyping import Bool, Float
from torch import Tensor, nn

from gear_rl.credit.batch import ForwardRequest
from gear_rl.credit.engine import Tokenizer
from gear_rl.credit.passes import PASS_SIGNALS, ModelPasses
from gear_rl.engines.trl.checks import SHARDED
from gear_rl.records import Record
from gear_rl.signals.forwards import capturing, max_positions, unwrapped
from gear_rl.signals.score import KeptStates, StudentStates, TeacherStates
from gear_rl.tensor.logits import predicting_positions

if TYPE_CHECKING:
    from gear_rl.engines.trl.trainer import GEARTrainer

T = TypeVar("T")


class TRLEngine:
    """``trainer`` as an engine. Hidden states of passes that have been run already are not computed again.

    ``in_loss`` says that this process computes for itself, for a micro-batch in its loss: other processes may
    have another number of forwards there (weights are not sharded then).
    """

    signals = PASS_SIGNALS

    def __init__(
        self,
        trainer: "GEARTrainer",
        *,
        student_states: StudentStates | None = None,
        teacher_states: TeacherStates | None = None,
        in_loss: bool = False,
    ) -> None:
        self.trainer, self.in_loss = trainer, in_loss
        self.student_states, self.teacher_states = student_states, teacher_states
        self.tokenizer = cast(Tokenizer, trainer._tokenizer)
        self.max_positions = max_positions(unwrapped(trainer.model).config)
        self.segment_check = trainer.segment_check
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
            config=args,
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


# --- the student's hidden states out of forwards that TRL runs anyway ----------------------------------------


class StudentPass:
    """The hidden states that predict each token of some completions, collected from TRL's forwards.

    >>> student = StudentPass(torch.ones(2, 3, dtype=torch.bool))
    >>> student.take(torch.zeros(1, 5, 8))  # one row: two tokens of the prompt, three of the completion
    >>> student.whole
    False
    """

    def __init__(self, attention: Bool[Tensor, "B T"]) -> None:
        self.states = KeptStates(attention)
        self.logprob: Tensor | None = None
        """What TRL made of the same forwards."""
        self._rows, self._sound = 0, True

    @torch.no_grad()
    def take(self, hidden_BSD: Float[Tensor, "n S D"]) -> None:
        """The next rows' last hidden states, prompt included."""
        attention, end = self.states.mask, self._rows + len(hidden_BSD)
        self._sound &= end <= len(attention) and hidden_BSD.shape[1] > attention.shape[1]
        if self._sound:
            batch = torch.arange(self._rows, end, device=attention.device)
            part = predicting_positions(hidden_BSD.detach(), attention.shape[1])
            self.states.take(batch, attention[batch], part[attention[batch]])
        self._rows = end

    @property
    def whole(self) -> bool:
        """Whether every row was seen, once."""
        return self._sound and self._rows == len(self.states.mask)


def captured(
    call: Callable[..., Any], model: nn.Module, args: tuple[Any, ...], options: dict[str, Any]
) -> tuple[Any, StudentPass | None]:
    """What TRL's ``call`` returns, and the hidden states of its forwards; None where not all were captured."""
    if len(args) < 3:  # ids, attention mask, tokens to keep: another TRL may name them
        return call(model, *args, **options), None
    student = StudentPass(args[1][:, -int(args[2]) :].bool())
    with capturing(model, student.take):
        result = call(model, *args, **options)
    student.logprob = result[0]
    return result, student if student.whole else None


def makes_old_pass(args: Any, use_vllm: bool = False) -> bool:
    """Whether TRL computes the log-probabilities of its rollouts before it trains on them.

    >>> from types import SimpleNamespace
    >>> args = SimpleNamespace(gradient_accumulation_steps=4, steps_per_generation=8, num_iterations=1)
    >>> makes_old_pass(args)  # the weights change between the two halves of the rollouts
    True
    """
    if use_vllm and args.vllm_importance_sampling_correction:
        return True
    return bool(args.gradient_accumulation_steps % (args.steps_per_generation * args.num_iterations))


def is_deterministic(model: nn.Module) -> bool:
    """Whether a forward in training mode is the same as in evaluation: no dropout, noise or batch statistics.

    >>> is_deterministic(nn.Sequential(nn.Linear(1, 1), nn.Dropout(0.0)))
    True
    >>> is_deterministic(nn.Sequential(nn.Linear(1, 1), nn.Dropout(0.1)))
    False
    """
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0:
            return False
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            return False
        # transformers keeps the rate of a functional dropout, or of a router's noise, as a plain number.
        for name, value in vars(module).items():
            noisy = any(word in name for word in ("drop", "jitter", "noise"))
            if noisy and isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
                return False
    return True
