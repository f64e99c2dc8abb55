"""How sure the student is of the ground truth before each of its turns, had it to answer at once.

The ground truth's tokens stand where the turn would begin, and are only scored: nothing is generated from
them. One forward pass for every turn.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from gear_rl.signals.batch import Completions, ForwardRequest, Prompts, RolloutBatch
from gear_rl.signals.engine import Engine, plain_ids
from gear_rl.signals.forwards import evaluating, head_of, hidden_states
from gear_rl.signals.passes import ModelPasses, PassSignal
from gear_rl.signals.signal import BatchSignal
from gear_rl.tensor.groups import has_turn, on_turns
from gear_rl.tensor.lists import int_list
from gear_rl.tensor.logits import scattered, token_statistics
from gear_rl.tensor.segments import turn_ids


@dataclass(frozen=True)
class AnswerIds(BatchSignal):
    """The ids of each ground truth as the student would write it; -1 behind them, and where none is known."""

    name = "answer_ids_BN"
    context = True

    template: str = "{privileged_context}"

    def compute(self, batch: RolloutBatch, engine: Engine) -> Tensor:
        written = [
            self.template.replace("{privileged_context}", text) if text else "" for text in batch.contexts
        ]
        ids = [plain_ids(engine.tokenizer, text) for text in written]
        width = max(1, *map(len, ids))
        rows = [own + [-1] * (width - len(own)) for own in ids]
        mask = batch.completions.mask
        return torch.tensor(rows, dtype=torch.int64, device=mask.device).view(len(mask), width)


@dataclass(frozen=True)
class AnswerConfidence(PassSignal):
    """Geometric mean of the student's probabilities of the ground truth's tokens, had it to answer before the
    turn of a token; from 0 to 1, the same on every token of the turn (IGPO's P, arXiv:2510.14967)."""

    name = "answer_confidence"
    context = True

    template: str = "{privileged_context}"
    """How the ground truth would be answered."""

    def __post_init__(self) -> None:
        if "{privileged_context}" not in self.template:
            raise ValueError(
                f"answer_template: {self.template!r} lacks {{privileged_context}}; add the placeholder"
            )

    @property
    def reads(self) -> tuple[BatchSignal, ...]:
        return (AnswerIds(self.template),)

    def compute(self, passes: ModelPasses, request: ForwardRequest) -> Tensor:
        mask = request.completions.mask
        answers = [[i for i in int_list(row) if i >= 0] for row in request.inputs["answer_ids_BN"]]
        count = confidence_batches(mask, answers, request.scored_B, passes.batch_size)
        return answer_confidence(
            passes.model,
            request.completions,
            request.student,
            answers,
            num_batches=passes.largest(count),
            row_B=request.scored_B,
            batch_size=passes.batch_size,
            temperature=passes.temperature,
            head_context=passes.head_context,
        )


@torch.no_grad()
def answer_confidence(
    model: nn.Module,
    completions: Completions,
    student: Prompts,
    answers: Sequence[Sequence[int]],
    *,
    temperature: float = 1.0,
    head_context: Callable[[nn.Module], AbstractContextManager[Any]] | None = None,
    row_B: Bool[Tensor, " B"] | None = None,
    batch_size: int = 8,
    num_batches: int = 0,
) -> Float[Tensor, "B T"]:
    """``AnswerConfidence``, given the ids of each answer: ``exp(mean_j log p(a_j | prompt, before, a_<j))``.

    The completion before the turn ends with what the chat template opens a turn with. 0 where the mask is False,
    in rows without ids and in rows where ``row_B`` is False. Turns are sorted by length; ``num_batches`` is the
    least number of forwards, surplus ones are dropped (``confidence_batches``). A non-finite value is left in
    place. Raises ``ValueError`` if not every completion has its list of ids, and for a prompt without a token.
    """
    mask = completions.mask
    pairs = _pairs(mask, answers, row_B)
    confidence_BK = torch.zeros(mask.shape, device=mask.device)
    context: Callable[[nn.Module], AbstractContextManager[Any]] = head_context or nullcontext
    with evaluating(model):
        for begin in range(0, len(pairs), batch_size):
            batch = pairs[begin : begin + batch_size]
            rows = [_sequence(completions, student, answers[b], b, start) for b, _, start in batch]
            values = _confidences(model, rows, [len(answers[b]) for b, _, _ in batch], temperature, context)
            place = torch.tensor(batch, device=mask.device)
            confidence_BK[place[:, 0], place[:, 1]] = values.to(mask.device)
        spare = torch.zeros(2, dtype=torch.long, device=mask.device)
        for _ in range(num_batches - -(-len(pairs) // batch_size)):
            _confidences(model, [spare], [1], temperature, context)
    return on_turns(confidence_BK, turn_ids(mask))


def confidence_batches(
    mask: Bool[Tensor, "B T"],
    answers: Sequence[Sequence[int]],
    row_B: Bool[Tensor, " B"] | None = None,
    batch_size: int = 8,
) -> int:
    """How many forward passes ``answer_confidence`` makes: one for each turn with an answer, some at once.

    >>> mask = torch.tensor([[True, False, True], [True, True, True], [True, False, True]])
    >>> confidence_batches(mask, [[5], [6, 7], []], batch_size=2)
    2
    """
    return -(-len(_pairs(mask, answers, row_B)) // batch_size)


def _pairs(
    mask: Bool[Tensor, "B T"], answers: Sequence[Sequence[int]], row_B: Bool[Tensor, " B"] | None
) -> list[tuple[int, int, int]]:
    """Completion, turn and the turn's first column, for every turn that is scored; the longest text first."""
    if len(answers) != len(mask):
        raise ValueError(
            f"answers: {len(answers)} lists of ids for {len(mask)} completions; give one for each, empty where "
            "no answer is known"
        )
    turn_id = turn_ids(mask)
    wanted = has_turn(turn_id)
    if row_B is not None:
        wanted = wanted & row_B[:, None]
    pairs: list[tuple[int, int, int]] = []
    for b, turn in cast(list[list[int]], wanted.nonzero().tolist()):  # pyright: ignore[reportUnknownMemberType]
        if len(answers[b]):
            pairs.append((b, turn, int((turn_id[b] == turn).nonzero()[0].item())))
    return sorted(pairs, key=lambda pair: (-pair[2] - len(answers[pair[0]]), pair))


def _sequence(
    completions: Completions, student: Prompts, answer: Sequence[int], b: int, start: int
) -> Tensor:
    """Prompt, completion up to the column ``start`` and answer, without padding."""
    prompt = student.ids_BP[b][student.attention_BP[b].bool()]
    if len(prompt) == 0:
        raise ValueError(
            f"student: prompt {b} is empty; give every completion a prompt of at least one token"
        )
    before = completions.ids[b][:start]
    return torch.cat([prompt, before, torch.tensor([*answer], device=prompt.device, dtype=prompt.dtype)])


def _confidences(
    model: nn.Module,
    rows: Sequence[Tensor],
    answer_lengths: Sequence[int],
    temperature: float,
    head_context: Callable[[nn.Module], AbstractContextManager[Any]],
) -> Float[Tensor, " N"]:
    """Of each sequence how likely its last tokens are, as the geometric mean of their probabilities."""
    # Padded on the right: each sequence has the positions that it would have alone.
    ids = nn.utils.rnn.pad_sequence([*rows], batch_first=True)
    device, width = ids.device, ids.shape[1]
    length = torch.tensor([len(row) for row in rows], device=device)[:, None]
    answer_length = torch.tensor(answer_lengths, device=device)[:, None]
    column = torch.arange(width, device=device)
    # Every token but the first is predicted by a hidden state.
    hidden = hidden_states(model, ids, (column < length).long(), num_tokens=width - 1)
    answer = ((column >= length - answer_length) & (column < length))[:, 1:]
    with head_context(model):
        statistics = token_statistics(hidden[answer], ids[:, 1:][answer], head_of(model, temperature))
    return (scattered(statistics.student_logprob, answer).sum(-1) / answer_length[:, 0]).exp()
