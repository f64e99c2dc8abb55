"""The confidence in the ground truth against an oracle that knows no batch and no padding: one turn at a time."""

import contextlib
import math

import pytest
import torch
from torch import nn

from engines import tiny
from gear_rl.signals.batch import Completions, Prompts, TeacherPrompt, left_padded
from gear_rl.signals.confidence import answer_confidence, confidence_batches
from gear_rl.types import TokenSignals

PAD, WIDTH = 0, 9
PROMPTS = [[5, 6, 7], [8, 9, 10, 11, 12], [13], [14, 15]]
COMPLETIONS = [[30, 31, 32, 33], [40, 41], [50, 51, 52, 53, 54, 55, 56], [60, 61, 62]]
MASKS = [[1, 1, 0, 1], [1, 1], [0, 1, 1, 0, 0, 1, 1], [1, 0, 1]]
ANSWERS = [[70, 71, 72], [73], [74, 75], []]
TURNS = [[[0, 1], [3]], [[0, 1]], [[1, 2], [5, 6]], [[0], [2]]]
"""The columns of every turn."""


def right_padded(rows: list[list[int]]) -> torch.Tensor:
    return torch.tensor([row + [PAD] * (WIDTH - len(row)) for row in rows])


def batch() -> tuple[Completions, Prompts]:
    attention = right_padded([[1] * len(row) for row in COMPLETIONS])
    completions = Completions(
        ids=right_padded(COMPLETIONS), attention=attention, mask=right_padded(MASKS).bool()
    )
    return completions, left_padded([TeacherPrompt(tuple(ids)) for ids in PROMPTS], PAD)


@torch.no_grad()
def by_hand(model: nn.Module, temperature: float = 1.0) -> torch.Tensor:
    """Every token of the answer by a forward over exactly the tokens before it."""
    found = torch.zeros(len(PROMPTS), WIDTH)
    for b, turns in enumerate(TURNS):
        for columns in turns if ANSWERS[b] else []:
            before = PROMPTS[b] + COMPLETIONS[b][: columns[0]]
            product = 1.0
            for j, token in enumerate(ANSWERS[b]):
                logits = model(input_ids=torch.tensor([before + ANSWERS[b][:j]])).logits[0, -1]
                product *= (logits / temperature).softmax(-1)[token].item()
            found[b, columns] = product ** (1 / len(ANSWERS[b]))
    return found


@pytest.fixture
def model() -> nn.Module:
    net = tiny.model(97, hidden_size=40)
    with torch.no_grad():
        for parameter in net.parameters():
            if parameter.dim() > 1:
                parameter.mul_(12.0)
    return net.eval()


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-4)


@contextlib.contextmanager
def counted(model: nn.Module):
    calls: list[tuple[int, ...]] = []
    handle = model.register_forward_hook(
        lambda module, args, options, output: calls.append(tuple(options["input_ids"].shape)),
        with_kwargs=True,
    )
    try:
        yield calls
    finally:
        handle.remove()


@pytest.mark.parametrize("batch_size", [1, 2, 3, 8])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_agrees_with_one_token_at_a_time(model, batch_size, temperature):
    completions, student = batch()
    expected = by_hand(model, temperature)
    turns = expected[expected > 0]
    assert turns.max() / turns.min() > 3, "the oracle must have something to see"
    with counted(model) as calls:
        found = answer_confidence(
            model, completions, student, ANSWERS, temperature=temperature, batch_size=batch_size
        )
    close(found, expected)
    assert (
        len(calls)
        == -(-5 // batch_size)
        == confidence_batches(completions.mask, ANSWERS, batch_size=batch_size)
    )
    assert found.dtype == torch.float32 and not found.requires_grad
    assert (found[~completions.mask] == 0).all() and (found[3] == 0).all()


def test_the_answer_stands_where_the_turn_begins():
    """A model that repeats its input's last token surely knows which one that was."""

    class Echo(nn.Module):
        """Next token: the last one plus 1, with probability 3 / (3 + V - 1)."""

        def __init__(self) -> None:
            super().__init__()
            self.base_model = nn.Embedding(10, 10)
            self.head = nn.Linear(10, 10, bias=False)
            with torch.no_grad():
                self.base_model.weight.copy_(torch.eye(10))
                self.head.weight.copy_(math.log(3.0) * torch.eye(10).roll(1, 0))
            self.config = type("Config", (), {})()

        def get_output_embeddings(self) -> nn.Module:
            return self.head

        def forward(self, input_ids, attention_mask, use_cache, logits_to_keep):
            hidden = self.base_model(input_ids)
            return hidden

    model = Echo()
    model.base_model.register_forward_hook(lambda module, args, output: (output,))
    completions = Completions(
        ids=torch.tensor([[4, 9, 6, 9, 7]]),
        attention=torch.ones(1, 5, dtype=torch.long),
        mask=torch.tensor([[True, False, False, True, True]]),
    )
    student = Prompts(ids_BP=torch.tensor([[0, 2]]), attention_BP=torch.tensor([[0, 1]]))
    # After 2 comes 3, and then 4: 1/4 each. The second turn begins after 6: there 3 is one of the others.
    likely, other = 3 / 12, 1 / 12
    found = answer_confidence(model, completions, student, [[3, 4]])
    close(found, torch.tensor([[likely, 0, 0, math.sqrt(other * likely), math.sqrt(other * likely)]]))


def test_rows_that_are_not_wanted_hold_zero_and_cost_nothing(model):
    completions, student = batch()
    row_B = torch.tensor([False, True, True, True])
    with counted(model) as calls:
        found = answer_confidence(model, completions, student, ANSWERS, row_B=row_B, batch_size=2)
    close(found, by_hand(model) * row_B[:, None])
    assert len(calls) == 2 == confidence_batches(completions.mask, ANSWERS, row_B, batch_size=2)


def test_the_longest_go_first_and_are_padded_to_their_own_length_only(model):
    completions, student = batch()
    with counted(model) as calls:
        answer_confidence(model, completions, student, ANSWERS, batch_size=2)
    # prompt, what came before the turn, answer: 1 + 5 + 2, 3 + 3 + 3;  3 + 0 + 3, 1 + 1 + 2;  5 + 0 + 1
    assert calls == [(2, 9), (2, 6), (1, 6)]
    # Causal attention never looks at padding on the right, but the model is told: some route tokens by it.
    told = []
    handle = model.register_forward_hook(
        lambda module, args, options, output: told.append(options["attention_mask"].sum(-1).tolist()),
        with_kwargs=True,
    )
    answer_confidence(model, completions, student, ANSWERS, batch_size=2)
    handle.remove()
    assert told == [[8, 9], [6, 4], [6]]


def test_neighbours_and_padding_change_nothing(model):
    completions, student = batch()
    together = answer_confidence(model, completions, student, ANSWERS)
    for b in range(4):
        alone = Completions(
            ids=torch.nn.functional.pad(completions.ids[b : b + 1], (0, 3), value=88),
            attention=torch.nn.functional.pad(completions.attention[b : b + 1], (0, 3)),
            mask=torch.nn.functional.pad(completions.mask[b : b + 1], (0, 3)),
        )
        prompt = Prompts(
            ids_BP=torch.nn.functional.pad(student.ids_BP[b : b + 1], (2, 0), value=77),
            attention_BP=torch.nn.functional.pad(student.attention_BP[b : b + 1], (2, 0)),
        )
        found = answer_confidence(model, alone, prompt, ANSWERS[b : b + 1])
        close(found, torch.nn.functional.pad(together[b : b + 1], (0, 3)))


def test_surplus_batches_keep_sharded_processes_in_step_and_change_nothing(model):
    completions, student = batch()
    with counted(model) as calls:
        found = answer_confidence(model, completions, student, ANSWERS, batch_size=3, num_batches=4)
    assert len(calls) == 4
    close(found, by_hand(model))
    with counted(model) as calls:
        nothing = answer_confidence(model, completions, student, [[]] * 4, num_batches=2)
    assert len(calls) == 2 and not nothing.any()
    with counted(model) as calls:
        assert not answer_confidence(model, completions, student, [[]] * 4).any()
    assert not calls


def test_no_row_no_column_and_no_trained_token(model):
    for shape in ((0, 3), (2, 0), (2, 3)):
        ids = torch.zeros(shape, dtype=torch.long)
        completions = Completions(ids=ids, attention=ids, mask=ids.bool())
        student = Prompts(
            ids_BP=torch.ones(shape[0], 2, dtype=torch.long), attention_BP=torch.ones(shape[0], 2).long()
        )
        found = answer_confidence(model, completions, student, [[1]] * shape[0])
        assert found.shape == shape and not found.any()


def test_dropout_is_off_and_every_module_gets_its_mode_back(model):
    model.train()
    model.model.layers[0].eval()
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.5
    completions, student = batch()
    first, second = (answer_confidence(model, completions, student, ANSWERS) for _ in range(2))
    assert torch.equal(first, second)
    assert model.training and not model.model.layers[0].training and model.model.layers[1].training
    with pytest.raises(ValueError):
        answer_confidence(model, completions, student, ANSWERS[:1])
    with pytest.raises(IndexError):
        answer_confidence(model, completions, student, [[1000]] * 4)
    assert model.training, "also after an error"


def test_the_heads_weights_are_used_inside_its_context_only(model):
    completions, student = batch()
    inside = []

    @contextlib.contextmanager
    def context(given):
        inside.append(given)
        yield

    found = answer_confidence(model, completions, student, ANSWERS, head_context=context, batch_size=8)
    assert inside == [model]
    close(found, by_hand(model))


def test_a_non_finite_weight_spoils_what_it_touches_and_is_left_in_place(model):
    completions, student = batch()
    expected = by_hand(model)
    with torch.no_grad():
        model.model.embed_tokens.weight[ANSWERS[1][0]] = math.nan  # tied: its own logit, hence every softmax
    found = answer_confidence(model, completions, student, ANSWERS)
    assert found[:3][completions.mask[:3]].isnan().all() and expected.isfinite().all()
    assert (found[~completions.mask] == 0).all()


def test_it_is_a_signal(model):
    completions, student = batch()
    found = answer_confidence(model, completions, student, ANSWERS)
    signals = TokenSignals(mask=completions.mask, answer_confidence=found)
    assert torch.equal(signals.get("answer_confidence"), found)


def test_what_cannot_be_scored_is_said(model):
    completions, student = batch()
    with pytest.raises(ValueError, match="answers: 3 lists of ids for 4 completions; give one for each"):
        answer_confidence(model, completions, student, ANSWERS[:3])
    empty = Prompts(ids_BP=student.ids_BP, attention_BP=torch.zeros_like(student.attention_BP))
    with pytest.raises(ValueError, match=r"student: prompt . is empty; give every completion a prompt"):
        answer_confidence(model, completions, empty, ANSWERS)
