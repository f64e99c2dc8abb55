"""The forward passes of a credit step under verl: the driver requests, the workers compute. Imports no verl.

verl's TransferQueue holds ``prompts`` and ``responses``, and every rank takes an equal run of the rollouts. We
add a ``Row`` for each rollout, an ``Order`` for all ranks, and a field for each signal that comes back.
"""

import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gear_rl.credit.credit_config import CreditConfig
from gear_rl.engine import ForwardRequest, OneProcess, Tokenizer
from gear_rl.records import Record
from gear_rl.rollouts import Completions, Prompts, left_padded
from gear_rl.tensor.lists import int_list
from gear_rl.types import Signal, is_per_row

ROW, ORDER = "gear_row", "gear_order"
"""The keys of the ``Order`` and of a rollout's ``Row``, which is pickled: the queue would turn it into a dict."""
FIELDS = ("prompts", "responses", ROW)
"""The fields of a rollout that a worker reads."""
PADDING = -1
"""The number of a rollout that verl added to fill the batch."""


def signal_field(name: str) -> str:
    """The field in which a worker leaves a signal."""
    return f"gear_signal_{name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """The part of a request that all ranks have in common."""

    needs: tuple[Signal, ...]
    step: int
    config: CreditConfig
    pad_id: int
    temperature: float
    seed: int
    teacher_model: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The part of a request about one rollout; the fields are those of ``ForwardRequest``."""

    mask: Tensor
    teachers: list[Tensor]
    inputs: dict[str, Tensor]
    scored: bool = False


def rows_of_request(request: ForwardRequest, places: Sequence[int]) -> list[Row]:
    """The rows of the rollouts with the numbers ``places``; a ``PADDING`` row has nothing to score."""
    nothing, rows = torch.zeros(1, dtype=torch.long), list[Row]()
    for b in places:
        if b == PADDING:  # without a trained token it is compared with none
            inputs = {name: nothing if x.dim() > 1 else nothing[0] for name, x in request.inputs.items()}
            rows.append(Row(mask=nothing, teachers=[nothing] * len(request.teachers), inputs=inputs))
            continue
        length = int(request.completions.attention[b].sum())
        whole = {
            n for n in request.inputs if is_per_row(n) or n.endswith("_BN")
        }  # not as wide as completions
        inputs = {n: x[b] if n in whole else x[b, :length] for n, x in request.inputs.items()}
        rows.append(
            Row(  # copies: a pickled view would carry the whole batch along
                mask=request.completions.mask[b, :length].cpu().clone(),
                teachers=[one.ids_BP[b][one.attention_BP[b].bool()].cpu() for one in request.teachers],
                inputs={name: x.cpu().clone() for name, x in inputs.items()},
                scored=bool(request.scored_B[b]),
            )
        )
    return rows


def request_of_rows(
    order: Order,
    rows: Sequence[Row],
    prompts: Sequence[Tensor],
    responses: Sequence[Tensor],
    device: torch.device,
) -> ForwardRequest:
    """The request for the rollouts of one rank, with verl's ``prompts`` and ``responses``."""

    def pad_right(values: Sequence[Tensor]) -> Tensor:
        return pad_rows(values).to(device)

    def pad_left(values: Sequence[Tensor]) -> Prompts:
        return left_padded([int_list(ids) for ids in values], order.pad_id, device)

    def pad_values(values: Sequence[Tensor]) -> Tensor:
        return pad_right(values) if values[0].dim() else torch.stack([*values]).to(device)

    return ForwardRequest(
        needs=order.needs,
        step=order.step,
        completions=Completions(
            ids=pad_right(responses),
            attention=pad_right([torch.ones_like(ids) for ids in responses]),
            mask=pad_right([row.mask for row in rows]).bool(),
        ),
        student=pad_left(prompts),
        teachers=[pad_left(shown) for shown in zip(*(row.teachers for row in rows), strict=True)],
        scored_B=torch.tensor([row.scored for row in rows], device=device),
        skip_first_tokens=order.config.teacher_skip_first_tokens,
        inputs={name: pad_values([row.inputs[name] for row in rows]) for name in rows[0].inputs},
    )


Passes = Callable[[list[int], list[bytes], Order], dict[str, list[Tensor]]]
"""Runs the workers on rollouts and the ``Row`` of each; every signal comes back in the same order."""


@dataclass(frozen=True, kw_only=True)
class VerlEngine(OneProcess):
    """verl's driver as the ``Engine`` of the credit step, for one batch.

    The batch is scored by ``parts`` ranks; ``padding`` of its rollouts only fill it; ``tools`` has the schemas of
    each rollout.
    """

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
    state: dict[str, Any]
    max_positions: int | None = None
    teacher_model: str | None = None
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
        names = [signal.name for signal in request.needs]
        places = self._places(request)
        order = Order(
            needs=tuple(request.needs),
            step=request.step,
            config=self.config,
            pad_id=int(self.tokenizer.pad_token_id or 0),
            temperature=self.temperature,
            seed=self.seed,
            teacher_model=self.teacher_model,
        )
        values = self.passes(places, [pickle.dumps(row) for row in rows_of_request(request, places)], order)
        width = request.completions.mask.shape[1]
        back = sorted((b, place) for place, b in enumerate(places) if b != PADDING)
        return {name: pad_rows([values[name][place] for _, place in back], width).float() for name in names}

    def log(self, metrics: Mapping[str, float]) -> None:
        self.metrics.update(metrics)

    def _places(self, request: ForwardRequest) -> list[int]:
        """The rollouts in the order in which the ranks take them."""
        rows = [*range(len(request.scored_B)), *[PADDING] * self.padding]
        if any(signal.whole_groups for signal in request.needs):
            groups = int_list(request.inputs["judged_group_B"])
            groups += [-1 - len(rows) - n for n in range(self.padding)]
            return [rows[r] for r in placed_by_group(groups, self.parts)]
        scored = [*map(bool, int_list(request.scored_B.long())), *[False] * self.padding]
        lengths = [*int_list(request.completions.attention.sum(-1)), *[0] * self.padding]
        return [rows[r] for r in balanced_order(scored, lengths, self.parts)]


def balanced_order(scored: Sequence[bool], lengths: Sequence[int], parts: int) -> list[int]:
    """An order whose ``parts`` equal runs have about as much to score: the longest first, dealt back and forth.

    >>> balanced_order([True, False, True, True, False, True], [9, 5, 8, 7, 5, 6], parts=2)
    [0, 5, 1, 2, 3, 4]
    """
    runs: list[list[int]] = [[] for _ in range(parts)]
    for n, row in enumerate(sorted(range(len(scored)), key=lambda r: (not scored[r], -lengths[r]))):
        turn = n % (2 * parts)
        runs[min(turn, 2 * parts - 1 - turn)].append(row)
    return [row for run in runs for row in run]


def placed_by_group(groups: Sequence[int], parts: int) -> list[int]:
    """An order whose ``parts`` equal runs hold whole groups; ``ValueError`` where a group would be split.

    >>> placed_by_group([7, 8, 7, 8], parts=2)
    [0, 2, 1, 3]
    """
    order = sorted(range(len(groups)), key=lambda r: groups[r])
    size = len(order) // parts
    if any(groups[order[end - 1]] == groups[order[end]] for end in range(size, len(order), size)):
        raise ValueError(
            f"data.train_batch_size: the groups of {len(set(groups))} prompts cannot be divided evenly among "
            f"{parts} ranks, and this method compares hidden states of a whole group; make it a multiple of the "
            "ranks; if it is one, rollouts have failed, and verl's log says why"
        )
    return order


def pad_rows(rows: Sequence[Tensor], width: int = 0) -> Tensor:
    """Rows of different lengths as one tensor, filled with 0 on the right, at least ``width`` wide."""
    both = torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True)
    return torch.nn.functional.pad(both, (0, max(0, width - both.shape[1])))


def jagged_rows(padded: Tensor, lengths: Sequence[int]) -> Tensor:
    """Padded rows as verl stores them: each as long as its completion."""
    rows = [row[:length] for row, length in zip(padded, lengths, strict=True)]
    return torch.nested.as_nested_tensor(rows, layout=torch.jagged)


def column(values: Any) -> list[Any]:
    """A field of verl's batch as one entry per rollout: tensors without padding, or plain values."""
    if isinstance(values, Tensor):
        return list(values.unbind())
    return [getattr(value, "data", value) for value in values]
