"""What the driver sends is what the workers see, in whatever order and on however many ranks."""

import pickle

import torch
from hypothesis import given
from hypothesis import strategies as st

from gear_rl.credit.config import CreditConfig
from gear_rl.engines.verl.passes import (
    PADDING,
    Order,
    VerlEngine,
    placed,
    placed_by_group,
    request_of_rows,
    rows_of_request,
)
from gear_rl.signals.batch import Completions, ForwardRequest, TeacherPrompt, left_padded
from gear_rl.signals.signal import names_of
from gear_rl.types import is_per_row
from support.batches import PlainEngine, batch_of


def request_of(lengths: list[int], **changes) -> ForwardRequest:
    """A request with completions of these lengths; every id says its row and place."""
    width = max(lengths)
    attention = (torch.arange(width)[None] < torch.tensor(lengths)[:, None]).long()
    ids = (torch.arange(len(lengths))[:, None] * 100 + torch.arange(width) + 1) * attention
    prompts = [TeacherPrompt((7,) * (1 + b)) for b in range(len(lengths))]
    teachers = [TeacherPrompt((9,) * (3 + b % 2)) for b in range(len(lengths))]
    given = {
        "needs": ("divergence",),
        "step": 4,
        "completions": Completions(ids=ids, attention=attention, mask=ids % 3 > 0),
        "student": left_padded(prompts, 0),
        "teachers": [left_padded(teachers, 0)],
        "scored_B": torch.tensor([b % 3 > 0 for b in range(len(lengths))]),
        "inputs": {
            "answer_region": ids % 5,
            "answer_ids_BN": torch.arange(len(lengths))[:, None] + torch.arange(3),
            "judged_group_B": torch.arange(len(lengths)) // 2,
            "succeeded_B": torch.arange(len(lengths)) % 2 == 1,
        },
    }
    return ForwardRequest(**{**given, **changes})


def order_of(request: ForwardRequest) -> Order:
    return Order(
        needs=request.needs,
        step=request.step,
        config=CreditConfig(),
        pad_id=0,
        temperature=1.0,
        seed=0,
    )


def of_verl(request: ForwardRequest, rows: list[int]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """verl's prompts and responses of the rollouts, in the order of the rows; a padding row is one token."""

    def cut(ids, kept, row):
        return ids[row][kept[row].bool()]

    whole, student = request.completions, request.student
    one = torch.ones(1, dtype=torch.long)
    return (
        [one if r == PADDING else cut(student.ids_BP, student.attention_BP, r) for r in rows],
        [one if r == PADDING else cut(whole.ids, whole.attention, r) for r in rows],
    )


def seen_by_a_rank(request: ForwardRequest, places: list[int], rows: list[bytes], order: Order):
    return request_of_rows(
        order, [pickle.loads(row) for row in rows], *of_verl(request, places), torch.device("cpu")
    )


@given(st.lists(st.integers(1, 5), min_size=2, max_size=9), st.randoms())
def test_a_worker_sees_its_rows_of_the_request(lengths, random):
    request = request_of(lengths)
    rows = [*range(len(lengths)), PADDING]
    random.shuffle(rows)
    sent = [pickle.dumps(row) for row in rows_of_request(request, rows)]
    seen = seen_by_a_rank(request, rows, sent, order_of(request))
    for place, row in enumerate(rows):
        if row == PADDING:
            assert not seen.scored_B[place] and not seen.completions.mask[place].any()
            continue
        width = lengths[row]
        assert seen.completions.ids[place, :width].tolist() == request.completions.ids[row, :width].tolist()
        assert seen.completions.mask[place, :width].tolist() == request.completions.mask[row, :width].tolist()
        assert not seen.completions.mask[place, width:].any()
        assert seen.student.ids_BP[place].sum() == request.student.ids_BP[row].sum()
        assert seen.teachers[0].ids_BP[place].sum() == request.teachers[0].ids_BP[row].sum()
        assert seen.scored_B[place] == request.scored_B[row]
        for name, value in request.inputs.items():
            found = seen.inputs[name][place]
            if is_per_row(name):
                assert torch.equal(found, value[row]), name
            else:
                assert torch.equal(found[:width], value[row, :width]), name


def test_a_row_does_not_carry_the_batch_along():
    short, long = (len(pickle.dumps(row)) for row in rows_of_request(request_of([10, 4000]), [0, 1]))
    assert short < 5_000 < long


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 9)), min_size=1, max_size=20), st.integers(1, 4))
def test_ranks_have_about_as_much_to_score(rollouts, parts):
    rollouts += [(False, 1)] * (-len(rollouts) % parts)
    scored, lengths = zip(*rollouts, strict=True)
    order = placed(scored, lengths, parts)
    assert sorted(order) == list(range(len(rollouts)))
    size = len(rollouts) // parts
    counts = [sum(scored[r] for r in order[i : i + size]) for i in range(0, len(order), size)]
    assert max(counts) - min(counts) <= 1


def test_groups_stay_whole_or_the_error_names_the_batch_size():
    order = placed_by_group([5, 3, 5, 3], parts=2)
    assert [[5, 3, 5, 3][r] for r in order] == [3, 3, 5, 5]
    try:
        placed_by_group([1, 1, 1, 2, 2, 2], parts=4)
    except ValueError as error:
        assert "data.train_batch_size" in str(error)
    else:
        raise AssertionError("six rollouts of two groups went to four ranks")


class Workers:
    """Ranks that score by a rule of the ids: the signal of a token is its id, as far as its row is scored."""

    def __init__(self, request: ForwardRequest, parts: int) -> None:
        self.request, self.parts, self.counts = request, parts, list[int]()

    def __call__(self, places, rows, order):
        size, values = len(places) // self.parts, []
        for begin in range(0, len(places), size):
            part = slice(begin, begin + size)
            seen = seen_by_a_rank(self.request, places[part], rows[part], order)
            self.counts.append(int(seen.scored_B.sum()))
            signal = torch.where(seen.scored_B[:, None], seen.completions.ids.float(), 0.0)
            lengths = seen.completions.attention.sum(-1).tolist()
            values += [row[:n] for row, n in zip(signal, lengths, strict=True)]
        return dict.fromkeys(names_of(order.needs), values)


class Numbers:
    """As much of a tokenizer as an engine needs."""

    pad_token_id = 0

    def decode(self, token_ids, *, skip_special_tokens=False):
        return " ".join(map(str, token_ids))

    def __call__(self, text, *, add_special_tokens=True, split_special_tokens=False):
        return {"input_ids": [int(word) for word in text.split()]}


def engine_of(passes, parts: int, padding: int, **changes) -> VerlEngine:
    given = {
        "tokenizer": Numbers(),
        "config": CreditConfig(credit_batch_size=2),
        "temperature": 1.0,
        "seed": 0,
        "tools": [],
        "template_kwargs": {},
        "metrics": {},
    }
    return VerlEngine(passes=passes, parts=parts, padding=padding, **{**given, **changes})


def test_signals_come_back_to_their_rows():
    request = request_of([3, 1, 4, 2, 5, 2])
    workers = Workers(request, parts=4)
    signals = engine_of(workers, parts=4, padding=2).forward(request)
    expected = torch.where(request.scored_B[:, None], request.completions.ids.float(), 0.0)
    assert torch.equal(signals["divergence"], expected)
    assert max(workers.counts) - min(workers.counts) <= 1


def test_an_engine_of_verl_is_one_of_the_protocol():
    from gear_rl.signals.engine import Engine

    assert isinstance(engine_of(lambda places, rows, order: {}, 1, 0), Engine)
    assert isinstance(PlainEngine(None), Engine)
    assert batch_of(torch.tensor([[1]])).first == 0
