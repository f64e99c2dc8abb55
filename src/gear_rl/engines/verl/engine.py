"""verl's driver as an ``Engine`` of the credit step: one process, whose passes run in the actor's workers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from torch import Tensor

from gear_rl.credit.batch import ForwardRequest
from gear_rl.credit.config import CreditConfig
from gear_rl.credit.engine import Tokenizer
from gear_rl.credit.metrics import SegmentCheck
from gear_rl.credit.passes import PASS_SIGNALS
from gear_rl.engines.verl.wire import PADDING, Order, packed, padded, placed, placed_by_group
from gear_rl.records import Record
from gear_rl.tensor.lists import int_list

T = TypeVar("T")

Passes = Callable[[list[int], dict[str, list[Tensor]], Order], dict[str, list[Tensor]]]
"""Runs the workers on the rollouts in the given order (``PADDING`` for those that only fill the batch): the
fields that they need beside verl's own, and what they need to know. Returns each signal in the same order."""


@dataclass(frozen=True, kw_only=True)
class VerlEngine:
    """The driver, for one batch. ``parts`` ranks score it; ``padding`` rollouts only fill the batch.

    ``template_kwargs`` are the student's arguments of the chat template and ``tools`` the schemas of each
    rollout's tools.
    """

    signals = PASS_SIGNALS - {"reference_logprob"}
    rank = 0
    world_size = 1

    tokenizer: Tokenizer
    config: CreditConfig
    passes: Passes
    parts: int
    padding: int
    temperature: float
    seed: int
    tools: Sequence[Sequence[Mapping[str, Any]] | None]
    template_kwargs: Mapping[str, Any]
    metrics: dict[str, Any]
    segment_check: SegmentCheck | None = None
    max_positions: int | None = None
    record_sink: Callable[[list[Record]], object] | None = None

    def render(
        self, prompts: Sequence[Any], chat_template_kwargs: Mapping[str, Any] | None
    ) -> list[list[int]]:
        options = dict(self.template_kwargs if chat_template_kwargs is None else chat_template_kwargs)
        template: Any = self.tokenizer
        return [
            template.apply_chat_template(
                prompt, tools=tools or None, add_generation_prompt=True, return_dict=False, **options
            )
            for prompt, tools in zip(prompts, self.tools, strict=True)
        ]

    def forward(self, request: ForwardRequest) -> dict[str, Tensor]:
        rows = self._order(request)
        pad_id = int(self.tokenizer.pad_token_id or 0)
        order = Order(
            needs=request.needs,
            step=request.step,
            config=self.config,
            pad_id=pad_id,
            temperature=self.temperature,
            batch_size=cast(int, self.config.credit_batch_size),
            seed=self.seed,
            num_teachers=len(request.teachers),
            answers=request.answers,
        )
        values = self.passes(rows, packed(request, rows, pad_id), order)
        width = request.completions.mask.shape[1]
        back = sorted((row, place) for place, row in enumerate(rows) if row != PADDING)
        return {
            name: padded([values[name][place] for _, place in back], width).float() for name in request.needs
        }

    def gather(self, x: Tensor) -> Tensor:
        return x

    def gather_objects(self, items: list[T]) -> list[T]:
        return items

    def log(self, metrics: Mapping[str, float]) -> None:
        self.metrics.update(metrics)

    def _order(self, request: ForwardRequest) -> list[int]:
        """The rollouts in the order in which the ranks take them, as row numbers."""
        rows = [*range(len(request.scored_B)), *[PADDING] * self.padding]
        if request.group_B is not None:
            groups = [*int_list(request.group_B), *(-1 - len(rows) - n for n in range(self.padding))]
            return [rows[r] for r in placed_by_group(groups, self.parts)]
        scored = [*map(bool, int_list(request.scored_B.long())), *[False] * self.padding]
        lengths = [*int_list(request.completions.attention.sum(-1)), *[0] * self.padding]
        return [rows[r] for r in placed(scored, lengths, self.parts)]
