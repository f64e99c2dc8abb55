"""The ceiling where no formula says what a token is worth: rollouts that branch off are asked.

The value of a place in a completion is the mean reward of continuations from there (VinePPO, arXiv:2410.01679).
Knows no method and no task.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from gear_rl.credit.batch import RolloutBatch
from gear_rl.credit.engine import Engine
from gear_rl.engines.trl.evaluation import unnoticed
from gear_rl.lab.branches import Begun, SharedNoise
from gear_rl.signals.forwards import head_of, hidden_states
from gear_rl.tensor.lists import int_list

_LOGITS = 1 << 24
"""So many logits at a time at most: 64 MB."""
Finish = Callable[[Sequence[Begun], SharedNoise], Sequence[float]]
"""The rewards of rollouts that go on from where they are."""


def branched(
    trainer: Any, finish: Finish, branches: int
) -> Callable[[RolloutBatch, Engine], Float[Tensor, "B T"]]:
    """What gives a trainer the true advantages of its rollouts where only their rewards are known.

    A token is worth the mean reward of ``branches`` continuations after it less that of as many before it, by
    the policy as it is, at the trainer's temperature: unbiased for every token. A branch draws the token in place
    ``t`` of whatever it continues with the same noise. So the luck of what follows stands on both sides and
    cancels, and where a branch draws the token that is there already, it has nothing to say of it: it is followed
    only from where it leaves the completion. That costs a pass, and for each completion and branch as many
    continuations as a sample of the policy would differ from it in tokens, each after those before it.

    The advantages of a completion add up to its reward less the mean reward of the branches from its prompt,
    which siblings share. The trainer has to sample from the whole vocabulary, as it does by default. Raises
    ``ValueError`` for a head under an adapter.
    """

    def true_advantage(batch: RolloutBatch, engine: Engine) -> Float[Tensor, "B T"]:
        ids = batch.completions.ids
        vocabulary = int(trainer.model.get_output_embeddings().weight.shape[0])
        noise = SharedNoise(vocabulary=vocabulary, seed=(trainer.args.seed, batch.step))
        # Each prompt has branches of its own, so that the errors of two prompts are independent.
        own = [[branches * group + m for m in range(branches)] for group in batch.group]
        leaves = _leaves(batch, own, _drawn(trainer, batch, own, noise))
        # Siblings that leave the same beginning in the same way share what comes of it.
        begun = {one.key: one for of_branch in leaves for places in of_branch for _, one in places}
        rewards = dict(zip(begun, finish([*begun.values()], noise), strict=True))
        worth = [[0.0] * ids.shape[1] for _ in leaves]
        for b, of_branch in enumerate(leaves):
            for places in of_branch:
                after = batch.rewards[b] or 0.0  # beyond its last leave a branch is the completion itself
                for t, one in reversed(places):
                    before = rewards[one.key]
                    worth[b][t] += (after - before) / branches
                    after = before
        return torch.tensor(worth, device=ids.device)

    return true_advantage


_Leaves = list[list[list[tuple[int, Begun]]]]
"""By completion and branch: the places where the branch leaves it, in order, and how it goes on from each."""


def _leaves(batch: RolloutBatch, own: Sequence[Sequence[int]], drawn: Int[Tensor, "B M T"]) -> _Leaves:
    completions, student = batch.completions, batch.student
    leaves: _Leaves = []
    for b, row in enumerate(batch.rows):
        ids, trained = int_list(completions.ids[b]), int_list(completions.mask[b])
        prompt = tuple(int_list(student.ids_BP[b][student.attention_BP[b].bool()]))
        leaves.append(
            [
                [
                    (t, Begun(prompt=prompt, written=(*ids[:t], other[t]), branch=branch, row=row))
                    for t in range(len(ids))
                    if trained[t] and other[t] != ids[t]
                ]
                for branch, other in zip(own[b], map(int_list, drawn[b]), strict=True)
            ]
        )
    return leaves


def _drawn(
    trainer: Any, batch: RolloutBatch, own: Sequence[Sequence[int]], noise: SharedNoise
) -> Int[Tensor, "B M T"]:
    """The token that each branch draws in each place of a completion, after the tokens that are really before."""
    completions, (count, width) = batch.completions, batch.completions.ids.shape
    ids = torch.cat([batch.student.ids_BP, completions.ids], -1)
    seen = torch.cat([batch.student.attention_BP, completions.attention], -1)
    size, tile = int(trainer.args.per_device_eval_batch_size), max(1, _LOGITS // noise.vocabulary)
    drawn = torch.zeros(count, len(own[0]), width, dtype=torch.long)
    with unnoticed(trainer):
        trainer.model.eval()  # as whoever goes on from there
        head = head_of(trainer.model, trainer.temperature)
        for first in range(0, count, size):
            some = slice(first, first + size)
            hidden_NTD = hidden_states(trainer.model, ids[some], seen[some], num_tokens=width)
            for b, hidden_TD in enumerate(hidden_NTD, first):
                for begin in range(0, width, tile):
                    places = range(width)[begin : begin + tile]
                    logits = head.logits(hidden_TD[begin : begin + tile])
                    for m, branch in enumerate(own[b]):
                        rows = noise.rows([branch] * len(places), places).to(logits.device)
                        drawn[b, m, begin : begin + tile] = (logits + rows).argmax(-1).cpu()
    return drawn
