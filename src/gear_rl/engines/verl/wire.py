"""What travels for one credit step between verl's driver and its workers: a request there, signals back.

Prompts and completions are in verl's TransferQueue already, so only what they lack goes there: the teachers'
prompts, and a few numbers per rollout. Back come numbers per token, never logits. Imports no verl.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from gear_rl.credit.batch import ForwardRequest
from gear_rl.credit.config import CreditConfig
from gear_rl.signals.privileged import TeacherPrompt
from gear_rl.signals.score import Completions, left_padded
from gear_rl.tensor.lists import int_list

ROLLOUT = ("prompts", "responses")
"""verl's own fields of a rollout that a worker reads; its mask lacks the tokens that verl rejected."""
ORDER = "gear_order"
"""Under this key every worker is given the same ``Order``."""
PADDING = -1
"""The row number of a rollout that verl only added to fill the batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What all workers need to know of a request."""

    needs: tuple[str, ...]
    step: int
    config: CreditConfig
    pad_id: int
    temperature: float
    batch_size: int
    seed: int
    num_teachers: int
    answers: Sequence[Sequence[int]] = field(default=())
    """For every row of the batch the ids of its ground truth, or none at all."""


def teacher_field(number: int) -> str:
    """The field with the ids of the teachers' prompts; number 1 shows the wrong context of a contrast."""
    return f"gear_teacher_{number}"


def signal_field(name: str) -> str:
    """The field in which a worker leaves a signal.

    >>> signal_field("divergence")
    'gear_signal_divergence'
    """
    return f"gear_signal_{name}"


def request_fields(order: Order) -> list[str]:
    """Which fields of a rollout a worker is sent for a request."""
    own = ["gear_row", "gear_mask", "gear_scored", "gear_group", "gear_succeeded", "gear_region"]
    return [*ROLLOUT, *own, *(teacher_field(number) for number in range(order.num_teachers))]


def packed(request: ForwardRequest, rows: Sequence[int], pad_id: int) -> dict[str, list[Tensor]]:
    """The fields of every rollout in the order of ``rows``; a row that is ``PADDING`` has nothing to score.

    Each field is a list of one tensor for each rollout: numbers, or as many ids as the rollout has.
    """
    lengths = request.completions.attention.sum(-1)
    nothing = torch.tensor(0)
    fields: dict[str, list[Tensor]] = {"gear_row": [torch.tensor(row) for row in rows]}

    def numbers(values: Tensor | None) -> list[Tensor]:
        return [nothing if values is None or r == PADDING else values[r].long().cpu() for r in rows]

    fields["gear_scored"] = numbers(request.scored_B)
    # A padding row is alone: no other has a negative group.
    fields["gear_group"] = [
        torch.tensor(-1 - len(rows) - place) if r == PADDING else value
        for place, (r, value) in enumerate(zip(rows, numbers(request.group_B), strict=True))
    ]
    fields["gear_succeeded"] = numbers(request.succeeded_B)
    region = request.answer_region
    region = torch.zeros_like(request.completions.ids) if region is None else region
    for name, values in (("gear_mask", request.completions.mask), ("gear_region", region)):
        fields[name] = [
            torch.zeros(1, dtype=torch.long) if r == PADDING else values[r, : int(lengths[r])].long().cpu()
            for r in rows
        ]
    for number, teacher in enumerate(request.teachers):
        fields[teacher_field(number)] = [
            torch.tensor([pad_id])
            if r == PADDING
            else teacher.ids_BP[r][teacher.attention_BP[r].bool()].cpu()
            for r in rows
        ]
    return fields


def unpacked(fields: Mapping[str, Sequence[Tensor]], order: Order, device: torch.device) -> ForwardRequest:
    """The request as a worker sees it, of its own rollouts; ``fields`` as ``packed`` and verl's ``ROLLOUT``.

    >>> given = {"prompts": [5, 6], "responses": [7], "gear_mask": [1], "gear_row": 0, "gear_scored": 1}
    >>> fields = {name: [torch.tensor(value)] for name, value in given.items()}
    >>> order = Order(
    ...     needs=("student_entropy",), step=3, config=CreditConfig(), pad_id=0, temperature=1.0, batch_size=8,
    ...     seed=0, num_teachers=0,
    ... )
    >>> request = unpacked(fields, order, torch.device("cpu"))
    >>> request.student.ids_BP, request.completions.ids, request.scored_B
    (tensor([[5, 6]]), tensor([[7]]), tensor([True]))
    """

    def right(name: str) -> Tensor:
        return padded(fields[name]).to(device)

    def left(name: str) -> Any:
        return left_padded(
            [TeacherPrompt(tuple(int_list(ids))) for ids in fields[name]], order.pad_id, device
        )

    def numbers(name: str) -> Tensor:
        return torch.stack(list(fields[name])).to(device)

    rows, answers = int_list(torch.stack(list(fields["gear_row"]))), order.answers
    mask = right("gear_mask").bool()
    attention = padded([torch.ones_like(ids) for ids in fields["responses"]]).to(device)
    return ForwardRequest(
        needs=order.needs,
        step=order.step,
        completions=Completions(ids=right("responses"), attention=attention, mask=mask),
        student=left("prompts"),
        teachers=[left(teacher_field(number)) for number in range(order.num_teachers)],
        scored_B=numbers("gear_scored").bool(),
        answer_region=right("gear_region") if "gear_region" in fields else None,
        answers=[answers[row] if row != PADDING and answers else () for row in rows],
        group_B=numbers("gear_group") if "gear_group" in fields else None,
        succeeded_B=numbers("gear_succeeded").bool() if "gear_succeeded" in fields else None,
    )


def padded(rows: Sequence[Tensor], width: int = 0) -> Tensor:
    """Rows of different lengths as one tensor, filled with 0 on the right, at least ``width`` wide.

    >>> padded([torch.tensor([1.0]), torch.tensor([2.0, 3.0])], width=3)
    tensor([[1., 0., 0.],
            [2., 3., 0.]])
    """
    both = torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True)
    return torch.nn.functional.pad(both, (0, max(0, width - both.shape[1])))


def rows_of(values: Any) -> list[Any]:
    """A field of verl's batch as one entry per rollout: tensors without padding, or plain values."""
    if isinstance(values, Tensor):
        return list(values.unbind())
    return [getattr(value, "data", value) for value in values]


def jagged(padded: Tensor, lengths: list[int]) -> Tensor:
    """Padded rows as verl stores them: each as long as its completion."""
    rows = [row[:length] for row, length in zip(padded, lengths, strict=True)]
    return torch.nested.as_nested_tensor(rows, layout=torch.jagged)


def placed(scored: Sequence[bool], lengths: Sequence[int], parts: int) -> list[int]:
    """An order of the rollouts in which ``parts`` equal runs have about as much to score each.

    The longest first, dealt out back and forth; those that are not scored fill up. The number of rollouts is a
    multiple of ``parts``.

    >>> placed([True, False, True, True, False, True], [9, 5, 8, 7, 5, 6], parts=2)
    [0, 5, 1, 2, 3, 4]
    """
    order = sorted(range(len(scored)), key=lambda r: (not scored[r], -lengths[r]))
    runs: list[list[int]] = [[] for _ in range(parts)]
    for begin in range(0, len(order), parts):
        dealt = order[begin : begin + parts]
        for run, row in zip(runs, dealt if begin // parts % 2 == 0 else reversed(dealt), strict=True):
            run.append(row)
    return [row for run in runs for row in run]


def placed_by_group(groups: Sequence[int], parts: int) -> list[int]:
    """An order in which ``parts`` equal runs hold whole groups; ``ValueError`` if there is none by this rule.

    >>> placed_by_group([7, 8, 7, 8], parts=2)
    [0, 2, 1, 3]
    """
    order = sorted(range(len(groups)), key=lambda r: groups[r])
    size = len(order) // parts
    for end in range(size, len(order), size):
        if groups[order[end - 1]] == groups[order[end]]:
            raise ValueError(
                f"data.train_batch_size: the groups of {len(set(groups))} prompts cannot be divided evenly among "
                f"{parts} ranks, and this method compares hidden states of a whole group; make it a multiple of "
                "the ranks"
            )
    return order
