"""What the credit step makes of a batch before it has signals, and after. Computes nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, cast

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from gear_rl.signals.batch import Prompts, RolloutBatch
from gear_rl.tensor.lists import int_list
from gear_rl.traits import distillation_of
from gear_rl.types import Credit, CreditAssigner, TokenSignals


@dataclass(frozen=True, slots=True, kw_only=True)
class CreditPlan:
    """What is to be credited and what has to be computed for it, before any signal is."""

    method: CreditAssigner
    """As it is at the batch's step."""
    batch: RolloutBatch
    sources: Sequence[str | None]
    """Where each rollout's privileged context came from."""
    contexts: Sequence[str | None]
    teachers: Sequence[Prompts]
    """The teacher's prompts, and those with the wrong context where there is a contrast."""
    scored_B: Bool[Tensor, " B"]
    """True on the completions whose signals will be read."""
    fallback_B: Mapping[str, Bool[Tensor, " B"]]
    source_names: Sequence[str] = ()
    """The sources of privileged contexts that are tried, in order; empty if the method never reads one."""

    @property
    def reads_signals(self) -> bool:
        """Whether the method needs any signal or teacher at all."""
        return bool(self.method.needs) or distillation_of(self.method) is not None

    def take(self, rows: Int[Tensor, " N"]) -> "CreditPlan":
        """The same of some rollouts."""
        numbers = int_list(rows)
        return replace(
            self,
            batch=self.batch.take(rows),
            sources=[self.sources[b] for b in numbers],
            contexts=[self.contexts[b] for b in numbers],
            teachers=[teacher.take(rows) for teacher in self.teachers],
            scored_B=self.scored_B[rows],
            fallback_B={name: value[rows] for name, value in self.fallback_B.items()},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CreditResult:
    """The credit of a batch of rollouts, and what it was made from.

    >>> def part(advantage):
    ...     one = torch.tensor([True])
    ...     credit = Credit(advantage=torch.tensor([[advantage]]), segment_id=torch.tensor([[0]]))
    ...     signals = TokenSignals(mask=one[None])
    ...     return CreditResult(credit=credit, signals=signals, scored_B=one, fallback_B={}, trusted_B=one)
    >>> whole = CreditResult.joined([part(1.0), part(2.0)], [torch.tensor([1]), torch.tensor([0])])
    >>> whole.credit.advantage.tolist()
    [[2.0], [1.0]]
    """

    credit: Credit
    signals: TokenSignals
    """What the method read; 0 in rows with a non-finite signal."""
    scored_B: Bool[Tensor, " B"]
    fallback_B: Mapping[str, Bool[Tensor, " B"]]
    """For each of ``FALLBACKS`` the completions that keep their GRPO advantage for that reason."""
    trusted_B: Bool[Tensor, " B"]
    """True where signals were computed and the credit is the method's own."""

    @classmethod
    def joined(cls, parts: "Sequence[CreditResult]", rows: Sequence[Int[Tensor, " N"]]) -> "CreditResult":
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

        return cls(**{f.name: of([getattr(part, f.name) for part in parts]) for f in fields(cls)})
