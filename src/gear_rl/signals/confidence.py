"""How sure the student is of the ground truth before each of its turns, had it to answer at once.

The ground truth's tokens stand where the turn would begin, and are only scored: nothing is generated from
them. One forward pass for every turn.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from gear_rl.engine import Engine, ForwardRequest, plain_ids
from gear_rl.model.forwards import evaluating, head_of, hidden_states
from gear_rl.rollouts import RolloutBatch
from gear_rl.signals.passes import ModelPasses, PassSignal
from gear_rl.signals.signal import BatchSignal
from gear_rl.tensor.groups import has_turn, on_turns
from gear_rl.tensor.lists import int_list
from gear_rl.tensor.logits import scatter_values, token_statistics
from gear_rl.tensor.segments import turn_ids


@dataclass(frozen=True)
class AnswerIds(BatchSignal):
    """The ids of each ground truth as the student would write it; -1 behind them, and where none is known."""

    name = "answer_ids_BN"
    context = True

    template: str = "{privileged_context}"
    contexts: tuple[str | None, ...] = ()

    def compute(self, batch: RolloutBatch, engine: Engine) -> Tensor:
        written = [
            self.template.replace("{privileged_context}", text) if text else "" for text in self.contexts
        ]
        ids = [plain_ids(engine.tokenizer, text) for text in written]
        width = max(1, *map(len, ids))
        rows = [own + [-1] * (width - len(own)) for own in ids]
        mask = batch.completions.mask
        return torch.tensor(rows, dtype=torch.int64, device=mask.device).view(len(mask), width)


@dataclass(frozen=True)
class AnswerConfidence(PassSignal):
    """Geometric mean of the student's probabilities of the ground truth's tokens, had it to answer before the
    turn of a token; from 0 to 1, the same on every token of the turn (IGPO's P, arXiv:2510.14967).

    ``exp(mean_j log p(a_j | prompt, before, a_<j))``: the completion before the turn ends with what the chat
    template opens a turn with. 0 where no ground truth is known.
    """

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

    @torch.no_grad()
    def compute(self, passes: ModelPasses, request: ForwardRequest) -> Tensor:
        student, turn_id = request.student, turn_ids(request.completions.mask)
        answers = [row[row >= 0] for row in request.inputs["answer_ids_BN"]]
        turns = _turns(turn_id, answers, request.scored_B)
        batches = [turns[i : i + passes.batch_size] for i in range(0, len(turns), passes.batch_size)]
        surplus = passes.largest(len(batches)) - len(batches)
        confidence_BK = torch.zeros(turn_id.shape, device=turn_id.device)
        with evaluating(passes.model):
            for batch in batches:
                rows = [
                    torch.cat(
                        [
                            student.ids_BP[b][student.attention_BP[b].bool()],
                            request.completions.ids[b, :start],
                            answers[b],
                        ]
                    )
                    for b, _, start in batch
                ]
                values = _confidences(passes, rows, [len(answers[b]) for b, _, _ in batch])
                place = torch.tensor(batch, device=turn_id.device)
                confidence_BK[place[:, 0], place[:, 1]] = values
            spare = torch.zeros(2, dtype=torch.long, device=turn_id.device)
            for _ in range(surplus):
                _confidences(passes, [spare], [1])
        return on_turns(confidence_BK, turn_id)


def _turns(
    turn_id: Int[Tensor, "B T"], answers: Sequence[Tensor], row_B: Bool[Tensor, " B"]
) -> list[tuple[int, int, int]]:
    """Completion, turn and the turn's first column, for every turn that is scored; the longest text first."""
    known_B = torch.tensor([len(answer) > 0 for answer in answers], dtype=torch.bool, device=turn_id.device)
    wanted = has_turn(turn_id) & (row_B & known_B)[:, None]
    found = [(b, turn, int((turn_id[b] == turn).nonzero()[0])) for b, turn in map(int_list, wanted.nonzero())]
    return sorted(found, key=lambda one: (-one[2] - len(answers[one[0]]), one))


def _confidences(
    passes: ModelPasses, rows: Sequence[Tensor], answer_lengths: Sequence[int]
) -> Float[Tensor, " N"]:
    """Of each sequence how likely its last tokens are, as the geometric mean of their probabilities."""
    # Padded on the right: each sequence has the positions that it would have alone.
    ids = nn.utils.rnn.pad_sequence([*rows], batch_first=True)
    device, width = ids.device, ids.shape[1]
    length = torch.tensor([len(row) for row in rows], device=device)[:, None]
    answer_length = torch.tensor(answer_lengths, device=device)[:, None]
    column = torch.arange(width, device=device)
    # Every token but the first is predicted by a hidden state.
    hidden = hidden_states(passes.model, ids, (column < length).long(), num_tokens=width - 1)
    answer = ((column >= length - answer_length) & (column < length))[:, 1:]
    with (passes.head_context or nullcontext)(passes.model):
        head = head_of(passes.model, passes.temperature)
        statistics = token_statistics(hidden[answer], ids[:, 1:][answer], head)
    return (scatter_values(statistics.student_logprob, answer).sum(-1) / answer_length[:, 0]).exp()
