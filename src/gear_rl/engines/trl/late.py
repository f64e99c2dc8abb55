"""Credit inside TRL's loss: where TRL trains on rollouts before any weight changes, it can wait until then.

TRL shuffles the rollouts and splits them into micro-batches; ``ROW`` says which rollout a row is. In the loss of
a micro-batch the teacher goes first, then TRL's own forward of the student is listened to, and before TRL reads
the advantages they are there. Knows no method.
"""

# TRL and transformers are only partly typed; what crosses this seam is checked by the tests instead.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportPrivateUsage=false

import inspect
import time
from collections.abc import Callable
from dataclasses import fields, replace
from functools import cache
from typing import Any, cast

import torch
from jaxtyping import Int
from torch import Tensor, nn
from trl import GRPOTrainer  # pyright: ignore[reportPrivateImportUsage]

from gear_rl.engines.trl.credit import Asked, Settled, for_loss, report, settle
from gear_rl.engines.trl.hooks import StudentPass, makes_old_pass, shares
from gear_rl.engines.trl.signals import collect, shares_prompts, taught
from gear_rl.signals.score import needs_student
from gear_rl.traits import distillation_of, is_per_completion
from gear_rl.types import Credit, TokenSignals, signal_of

ROW = "gear_row"
"""The column that says which rollout of the batch a shuffled row is."""
_OURS = ("training_step", "_prepare_inputs", "compute_loss", "_compute_loss")


def may_wait(trainer: Any, asked: Asked, own_class: type) -> bool:
    """Whether the credit of these rollouts may be left to the losses that TRL trains on them with.

    TRL must train on each of them once, before the next update; and the method must judge every completion by its
    own signals, which it says by ``per_completion = True``.
    """
    args, method = trainer.args, asked.method
    subclass = type(trainer).__mro__[: type(trainer).__mro__.index(own_class)]
    return (
        trainer._fetches
        and _loss_reads_late()
        and not any(name in vars(cls) for cls in subclass for name in _OURS)
        and args.num_iterations == 1
        and not makes_old_pass(trainer)
        and is_per_completion(method)
        and distillation_of(method) is None
        and needs_student(method.needs)
        and all(signal_of(name).late for name in method.needs)
        and len(asked.batch.teachers) <= 1
        and shares(trainer)
    )


class LateCredit:
    """The credit of a batch of rollouts, gathered from the micro-batches."""

    def __init__(self, trainer: Any, asked: Asked, output: dict[str, Any], begin: float) -> None:
        self._asked, self._output = asked, dict(output)
        self._rows: list[Tensor] = []
        self._settled: list[Settled] = []
        self._taught = None
        if len(asked.advantage_B) > trainer.args.per_device_train_batch_size and shares_prompts(asked.batch):
            # TRL's shuffle tears the groups apart, so the micro-batches could not share prompts.
            self._taught = taught(trainer, asked.method.needs, asked.batch)
        self._seconds = time.perf_counter() - begin
        output[ROW] = torch.arange(len(asked.advantage_B), device=asked.advantage_B.device)

    def loss(
        self,
        trainer: Any,
        model: nn.Module,
        inputs: dict[str, Any],
        own_loss: Callable[[nn.Module, dict[str, Any]], Tensor],
    ) -> Tensor:
        """TRL's loss of a micro-batch with the credit of its rollouts."""
        rows = cast(Tensor, inputs[ROW])
        # Without advantages: a TRL that read them too early must not find the plain ones.
        waiting = {name: value for name, value in inputs.items() if name not in (ROW, "advantages")}
        asked = self.teach(trainer, rows)

        def heard(student: StudentPass | None) -> None:
            waiting["advantages"] = self.settle(trainer, rows, asked, student)

        trainer._awaits = heard
        try:
            return own_loss(model, waiting)
        finally:
            trainer._awaits = None

    def teach(self, trainer: Any, rows: Int[Tensor, " N"]) -> Asked:
        """The teacher's pass, before the student's forward: lending weights writes into what its graph saves."""
        begin = time.perf_counter()
        asked = self._asked.rows(rows)
        if self._taught is None:
            found = taught(trainer, asked.method.needs, asked.batch)
        else:
            found = self._taught.rows(rows)
        self._seconds += time.perf_counter() - begin
        return replace(asked, batch=replace(asked.batch, late=True, taught=found))

    @torch.no_grad()
    def settle(
        self, trainer: Any, rows: Int[Tensor, " N"], asked: Asked, student: StudentPass | None
    ) -> Tensor:
        """The advantages of a micro-batch; with the last one all is logged and recorded."""
        begin = time.perf_counter()
        # What was not heard as expected is computed once more.
        states = None if student is None else student.states
        signals = collect(trainer, asked.method.needs, replace(asked.batch, student_states=states))
        settled = settle(trainer, asked, signals)
        self._rows.append(rows)
        self._settled.append(settled)
        self._seconds += time.perf_counter() - begin
        if sum(map(len, self._rows)) == len(self._asked.advantage_B):
            report(trainer, self._asked, self._whole(), self._output, self._seconds)
            trainer._late = None
        return for_loss(asked, settled.credit)

    def _whole(self) -> Settled:
        """All that was settled, in the order of the rollouts."""
        order = torch.cat(self._rows).argsort()

        def joined(parts: list[Any], kind: type) -> Any:
            found: dict[str, Any] = {}
            for field in fields(kind):
                values = [getattr(part, field.name) for part in parts]
                if values[0] is not None:
                    found[field.name] = torch.cat(values)[order]
            return kind(**found)

        return Settled(
            credit=joined([part.credit for part in self._settled], Credit),
            signals=joined([part.signals for part in self._settled], TokenSignals),
            fallback_B={
                name: torch.cat([part.fallback_B[name] for part in self._settled])[order]
                for name in self._settled[0].fallback_B
            },
            trusted_B=torch.cat([part.trusted_B for part in self._settled])[order],
        )


@cache
def _loss_reads_late() -> bool:
    """Whether this TRL's loss asks for the log-probabilities before it reads the advantages."""
    source = inspect.getsource(GRPOTrainer._compute_loss)
    asks, reads = source.find("self._get_per_token_logps_and_entropies("), source.find('inputs["advantages"]')
    return 0 <= asks < reads
