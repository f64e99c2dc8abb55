"""What the driver sends is what the workers see, in any order and on any number of ranks."""

import pickle

import pytest
import torch

from gear_rl.credit.credit_config import CreditConfig
from gear_rl.engine import ForwardRequest
from gear_rl.engines.verl.engine import (
    PADDING,
    VerlEngine,
    placed_by_group,
    request_of_rows,
)
from gear_rl.rollouts import Completions, left_padded
from gear_rl.signals.signal import DIVERGENCE


def request_of(lengths: list[int]) -> ForwardRequest:
    """A request with completions of these lengths; every id says its row and place."""
    width = max(lengths)
    attention = (torch.arange(width)[None] < torch.tensor(lengths)[:, None]).long()
    ids = (torch.arange(len(lengths))[:, None] * 100 + torch.arange(width) + 1) * attention
    return ForwardRequest(
        needs=(DIVERGENCE,),
        step=4,
        completions=Completions(ids=ids, attention=attention, mask=ids % 3 > 0),
        student=left_padded([(7,) * (1 + b) for b in range(len(lengths))], 0),
        teachers=[left_padded([(9,) * (3 + b % 2) for b in range(len(lengths))], 0)],
        scored_B=torch.tensor([b % 3 > 0 for b in range(len(lengths))]),
        inputs={
            "answer_region": ids % 5,
            "answer_ids_BN": torch.arange(len(lengths))[:, None] + torch.arange(7),  # wider than completions
            "judged_group_B": torch.arange(len(lengths)) // 2,
            "success_B": torch.arange(len(lengths)) % 2 == 1,
        },
    )


class Workers:
    """Ranks that keep what they see; the signal of a token is its id, as far as its row is scored."""

    def __init__(self, request: ForwardRequest, parts: int) -> None:
        self.request, self.parts = request, parts
        self.seen = list[tuple[list[int], ForwardRequest]]()

    def __call__(self, places, rows, order):
        size, values = len(places) // self.parts, []
        for begin in range(0, len(places), size):
            part = slice(begin, begin + size)
            prompts, responses = of_verl(self.request, places[part])
            unpickled = [pickle.loads(row) for row in rows[part]]
            seen = request_of_rows(order, unpickled, prompts, responses, torch.device("cpu"))
            self.seen.append((places[part], seen))
            signal = torch.where(seen.scored_B[:, None], seen.completions.ids.float(), 0.0)
            lengths = seen.completions.attention.sum(-1).tolist()
            values += [row[:n] for row, n in zip(signal, lengths, strict=True)]
        return {"divergence": values}


def of_verl(request: ForwardRequest, rows: list[int]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """verl's prompts and responses of the rollouts; one that only fills the batch has one token."""
    one, student, whole = torch.ones(1, dtype=torch.long), request.student, request.completions
    prompts = [one if r == PADDING else student.ids_BP[r][student.attention_BP[r].bool()] for r in rows]
    return prompts, [one if r == PADDING else whole.ids[r][whole.attention[r].bool()] for r in rows]


class Numbers:
    """As much of a tokenizer as an engine needs."""

    pad_token_id = 0


def test_workers_see_their_rows_and_signals_come_back_to_them():
    lengths = [3, 1, 4, 2, 5, 2]
    request = request_of(lengths)
    workers = Workers(request, parts=4)
    engine = VerlEngine(
        tokenizer=Numbers(), config=CreditConfig(credit_batch_size=2), passes=workers, parts=4, padding=2,
        temperature=1.0, seed=0, tools=[], template_kwargs={}, metrics={}, state={},
    )  # fmt: skip
    signals = engine.forward(request)
    expected = torch.where(request.scored_B[:, None], request.completions.ids.float(), 0.0)
    assert torch.equal(signals["divergence"], expected)
    assert sorted(row for rows, _ in workers.seen for row in rows) == [PADDING, PADDING, *range(6)]
    for place, row, seen in ((p, row, seen) for rows, seen in workers.seen for p, row in enumerate(rows)):
        if row == PADDING:
            assert not seen.scored_B[place] and not seen.completions.mask[place].any()
            continue
        width = lengths[row]
        for name in ("ids", "mask"):
            found, given = getattr(seen.completions, name), getattr(request.completions, name)
            assert found[place, :width].tolist() == given[row, :width].tolist(), name
        assert not seen.completions.mask[place, width:].any()
        assert seen.student.ids_BP[place].sum() == request.student.ids_BP[row].sum()
        assert seen.teachers[0].ids_BP[place].sum() == request.teachers[0].ids_BP[row].sum()
        assert seen.scored_B[place] == request.scored_B[row]
        for name, value in request.inputs.items():
            cut = ... if name.endswith(("_B", "_BN")) else slice(width)
            assert torch.equal(seen.inputs[name][place][cut], value[row][cut]), name


def test_groups_stay_whole_or_the_error_names_the_batch_size():
    order = placed_by_group([5, 3, 5, 3], parts=2)
    assert [[5, 3, 5, 3][r] for r in order] == [3, 3, 5, 5]
    with pytest.raises(ValueError, match=r"data\.train_batch_size"):
        placed_by_group([1, 1, 1, 2, 2, 2], parts=4)
