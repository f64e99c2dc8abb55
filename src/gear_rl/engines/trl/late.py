"""The student's hidden states out of forwards that TRL runs anyway, in place of a pass of our own.

TRL calls ``_get_per_token_logps_and_entropies`` after the rollouts where it needs old log-probabilities, and in
every loss. Where each rollout is trained on once before any weight changes, the credit is computed in the loss.
A pass of our own makes a step of SmolLM2-135M 1.10 times as long. Knows no method.
"""

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import Any, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from gear_rl.credit.plan import CreditPlan, CreditResult
from gear_rl.credit.step import assign, for_loss, report
from gear_rl.engines.trl.config import GEARConfig
from gear_rl.engines.trl.engine import TRLEngine
from gear_rl.signals.forwards import capturing
from gear_rl.signals.passes import KeptStates, shares_prompts
from gear_rl.tensor.lists import int_list
from gear_rl.tensor.logits import predicting_positions


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
        """Whether every row was captured, once."""
        return self._sound and self._rows == len(self.states.mask)


class StudentForwards:
    """Captures the student's hidden states from TRL's next forward, where a receiver is set."""

    def __init__(self) -> None:
        self.receive: Callable[[StudentPass | None], None] | None = None
        """Gets the next pass; None where it was not captured as expected."""
        self.old: StudentPass | None = None
        """The pass in which TRL computed the old log-probabilities of the rollouts under way."""

    def keep(self, student: StudentPass | None) -> None:
        """The receiver around a batch of rollouts."""
        self.old = student

    @contextmanager
    def going_to(self, receive: Callable[[StudentPass | None], None] | None) -> Generator[None]:
        """The first forward inside goes to ``receive``. May be nested: rollouts are sampled inside of others'."""
        before = self.receive, self.old
        self.receive, self.old = receive, None
        try:
            yield
        finally:
            self.receive, self.old = before

    def run(
        self, call: Callable[..., Any], model: nn.Module, args: tuple[Any, ...], options: dict[str, Any]
    ) -> Any:
        """What TRL's ``call`` returns for the student; ``args`` are ids, attention mask, tokens to keep."""
        # The first is the student's; one with the adapter off may follow.
        receive, self.receive = self.receive, None
        if receive is None:
            return call(model, *args, **options)
        student = StudentPass(args[1][:, -int(args[2]) :].bool())
        with capturing(model, student.take):
            result = call(model, *args, **options)
        student.logprob = result[0]
        receive(student if student.whole else None)
        return result


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


ROW = "gear_row"
"""The column that says which rollout of the batch a shuffled row is."""


class LateCredit:
    """The credit of a batch of rollouts that TRL trains on once, made in the losses of its micro-batches.

    TRL shuffles and splits the rollouts; the column ``ROW`` has the rollout of each row. Each loss first runs the
    teacher's pass, then captures TRL's forward of the student; the advantages are made before TRL reads them.
    ``engine_of`` makes the engine of a credit step.
    """

    def __init__(
        self,
        plan: CreditPlan,
        output: dict[str, Any],
        config: GEARConfig,
        engine_of: Callable[..., TRLEngine],
        begin: float,
    ) -> None:
        self._plan, self._config, self._engine_of = plan, config, engine_of
        self._rows: list[Tensor] = []
        self._results: list[CreditResult] = []
        self._teacher_states: KeptStates | None = None
        request = plan.request(plan.method.needs)
        if len(plan.scored_B) > config.per_device_train_batch_size and shares_prompts(request):
            # TRL shuffles the groups, so its micro-batches cannot share prompts.
            self._teacher_states = engine_of().passes.teacher_pass(request)
        self._seconds = time.perf_counter() - begin
        output[ROW] = torch.arange(len(plan.scored_B), device=plan.scored_B.device)

    def waiting(self, inputs: dict[str, Any]) -> tuple[dict[str, Any], Callable[[StudentPass | None], None]]:
        """The micro-batch for TRL's loss, and the receiver of the student's pass, which adds the advantages."""
        begin = time.perf_counter()
        rows = cast(Tensor, inputs[ROW])
        # Without advantages: a loss that reads them too early must not find the plain ones.
        waiting = {name: value for name, value in inputs.items() if name not in (ROW, "advantages")}
        plan, engine = part_of(self._plan, rows), self._engine_of(in_loss=True)
        # Before the student's forward: lending weights writes into what its graph saves.
        if self._teacher_states is None:
            engine.teacher_states = engine.passes.teacher_pass(plan.request(plan.method.needs))
        else:
            engine.teacher_states = self._teacher_states.rows(rows)
        self._seconds += time.perf_counter() - begin

        def receive(student: StudentPass | None) -> None:
            # None: not captured as expected, so computed once more.
            engine.student_states = None if student is None else student.states
            waiting["advantages"] = self._assign(rows, plan, engine)

        return waiting, receive

    @torch.no_grad()
    def _assign(self, rows: Int[Tensor, " N"], plan: CreditPlan, engine: TRLEngine) -> Tensor:
        """The advantages of a micro-batch; with the last one all is logged and recorded."""
        begin = time.perf_counter()
        result = assign(plan, engine, self._config)
        self._rows.append(rows)
        self._results.append(result)
        self._seconds += time.perf_counter() - begin
        if sum(map(len, self._rows)) == len(self._plan.scored_B):
            report(self._plan, joined(self._results, self._rows), self._engine_of(), self._seconds)
            self._teacher_states = None
        return for_loss(plan.batch, result.credit)


def part_of(plan: CreditPlan, rows: Int[Tensor, " N"]) -> CreditPlan:
    """The plan of some rollouts."""
    return replace(
        plan,
        batch=plan.batch.take(rows),
        sources=[plan.sources[b] for b in int_list(rows)],
        teachers=[teacher.take(rows) for teacher in plan.teachers],
        scored_B=plan.scored_B[rows],
        fallback_B={name: value[rows] for name, value in plan.fallback_B.items()},
    )


def joined(parts: Sequence[CreditResult], rows: Sequence[Int[Tensor, " N"]]) -> CreditResult:
    """One result of parts that hold the given rows of a batch, each row once; in the order of the batch."""
    order = torch.cat(list(rows)).argsort()

    def of(values: Sequence[Any]) -> Any:
        if isinstance(values[0], Tensor):
            return torch.cat(list(values))[order]
        if isinstance(values[0], Mapping):
            names = cast(Mapping[str, Any], values[0])
            return {name: of([value[name] for value in values]) for name in names}
        columns = {f.name: [getattr(value, f.name) for value in values] for f in fields(values[0])}
        return type(values[0])(**{name: of(own) for name, own in columns.items() if own[0] is not None})

    return of(parts)
