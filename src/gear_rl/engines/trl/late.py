"""Credit inside TRL's loss: where TRL trains on rollouts before any weight changes, it can wait until then.

TRL shuffles the rollouts and splits them into micro-batches; ``ROW`` says which rollout a row is. In the loss
of a micro-batch the teacher goes first, then TRL's own forward of the student is captured, and before TRL reads
the advantages they are there. Knows no method.
"""

import inspect
import time
from collections.abc import Callable
from functools import cache
from typing import Any, cast

import torch
from jaxtyping import Int
from torch import Tensor, nn
from trl import GRPOTrainer  # pyright: ignore[reportPrivateImportUsage]

from gear_rl.credit.batch import ForwardRequest
from gear_rl.credit.passes import shares_prompts
from gear_rl.credit.plan import CreditPlan, CreditResult
from gear_rl.credit.step import assign, for_loss, report
from gear_rl.engines.trl.hooks import StudentPass, makes_old_pass, shares
from gear_rl.engines.trl.trainer_type import Trainer
from gear_rl.signals.score import TeacherStates, needs_student
from gear_rl.traits import distillation_of, is_per_completion
from gear_rl.types import signal_of

ROW = "gear_row"
"""The column that says which rollout of the batch a shuffled row is."""
_OURS = ("training_step", "_prepare_inputs", "compute_loss", "_compute_loss")


def may_wait(trainer: Trainer, plan: CreditPlan, own_class: type) -> bool:
    """Whether the credit of these rollouts may be left to the losses that TRL trains on them with.

    TRL must train on each of them once, before the next update; and the method must judge every completion by its
    own signals, which it says by ``per_completion = True``.
    """
    args, method = trainer.args, plan.method
    subclass = type(trainer).__mro__[: type(trainer).__mro__.index(own_class)]
    return (
        trainer.rollouts.fetches
        and _loss_reads_late()
        and not any(name in vars(cls) for cls in subclass for name in _OURS)
        and args.num_iterations == 1
        and not makes_old_pass(trainer)
        and is_per_completion(method)
        and distillation_of(method) is None
        and needs_student(method.needs)
        and all(signal_of(name).late for name in method.needs)
        and len(plan.teachers) <= 1
        and shares(trainer)
    )


class LateCredit:
    """The credit of a batch of rollouts, gathered from the micro-batches."""

    def __init__(self, trainer: Trainer, plan: CreditPlan, output: dict[str, Any], begin: float) -> None:
        self._plan = plan
        self._rows: list[Tensor] = []
        self._results: list[CreditResult] = []
        self._teacher_states: TeacherStates | None = None
        request = _request(plan)
        if len(plan.scored_B) > trainer.args.per_device_train_batch_size and shares_prompts(request):
            # TRL's shuffle tears the groups apart, so the micro-batches could not share prompts.
            self._teacher_states = trainer.credit_engine().passes.teacher_pass(request)
        self._seconds = time.perf_counter() - begin
        output[ROW] = torch.arange(len(plan.scored_B), device=plan.scored_B.device)

    def loss(
        self,
        trainer: Trainer,
        model: nn.Module,
        inputs: dict[str, Any],
        own_loss: Callable[[nn.Module, dict[str, Any]], Tensor],
    ) -> Tensor:
        """TRL's loss of a micro-batch with the credit of its rollouts."""
        rows = cast(Tensor, inputs[ROW])
        # Without advantages: a TRL that read them too early must not find the plain ones.
        waiting = {name: value for name, value in inputs.items() if name not in (ROW, "advantages")}
        plan = self._plan.take(rows)
        teacher = self.teacher_states(trainer, rows, plan)

        def assign_late(student: StudentPass | None) -> None:
            waiting["advantages"] = self.assign(trainer, rows, plan, teacher, student)

        trainer.rollouts.on_student_pass = assign_late
        try:
            return own_loss(model, waiting)
        finally:
            trainer.rollouts.on_student_pass = None

    def teacher_states(
        self, trainer: Trainer, rows: Int[Tensor, " N"], plan: CreditPlan
    ) -> TeacherStates | None:
        """The teacher's pass, before the student's forward: lending weights writes into what its graph saves."""
        begin = time.perf_counter()
        if self._teacher_states is None:
            states = trainer.credit_engine(in_loss=True).passes.teacher_pass(_request(plan))
        else:
            states = self._teacher_states.rows(rows)
        self._seconds += time.perf_counter() - begin
        return states

    @torch.no_grad()
    def assign(
        self,
        trainer: Trainer,
        rows: Int[Tensor, " N"],
        plan: CreditPlan,
        teacher: TeacherStates | None,
        student: StudentPass | None,
    ) -> Tensor:
        """The advantages of a micro-batch; with the last one all is logged and recorded."""
        begin = time.perf_counter()
        # What was not captured as expected is computed once more.
        states = None if student is None else student.states
        engine = trainer.credit_engine(student_states=states, teacher_states=teacher, in_loss=True)
        result = assign(plan, engine, trainer.args)
        self._rows.append(rows)
        self._results.append(result)
        self._seconds += time.perf_counter() - begin
        if sum(map(len, self._rows)) == len(self._plan.scored_B):
            whole = CreditResult.joined(self._results, self._rows)
            report(self._plan, whole, trainer.credit_engine(), self._seconds)
            trainer.rollouts.late = None
        return for_loss(plan.batch, result.credit)


def _request(plan: CreditPlan) -> ForwardRequest:
    """The signals of the plan, all of which are made by the student's and the teacher's passes here."""
    return ForwardRequest(
        needs=tuple(plan.method.needs),
        step=plan.batch.step,
        completions=plan.batch.completions,
        student=plan.batch.student,
        teachers=plan.teachers,
        scored_B=plan.scored_B,
    )


@cache
def _loss_reads_late() -> bool:
    """Whether this TRL's loss computes the log-probabilities before it reads the advantages."""
    source = inspect.getsource(GRPOTrainer._compute_loss)
    computes, reads = (
        source.find("self._get_per_token_logps_and_entropies("),
        source.find('inputs["advantages"]'),
    )
    return 0 <= computes < reads
