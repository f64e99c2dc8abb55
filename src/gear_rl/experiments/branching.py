"""The ceiling where no formula says what a token is worth: rollouts that branch off are asked.

The value of a place in a completion is the mean reward of continuations from there (VinePPO, arXiv:2410.01679).
Knows no method and no task.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from gear_rl.credit.batch import RolloutBatch
from gear_rl.credit.engine import Engine
from gear_rl.engines.trl.branches import Begun, Finish, SharedNoise
from gear_rl.engines.trl.solve import unnoticed
from gear_rl.tensor.lists import int_list

_LOGITS = 1 << 26
"""So many logits at a time at most: 256 MB."""


def branched(
    trainer: Any, finish: Finish, branches: int
) -> Callable[[RolloutBatch, Engine], Float[Tensor, "B T"]]:
    """What gives a trainer the true advantages of its rollouts where only their rewards are known.

    A token is worth the mean reward of ``branches`` continuations after it less that of as many before it, by the
    policy as it is, at the trainer's temperature: unbiased for every token. Branch ``m`` draws the token in place
    ``t`` of whatever it continues with the same noise. So the luck of what follows stands on both sides and
    cancels, and where a branch draws the token that is there already, it has nothing to say of it: it is followed
    only from where it leaves the completion. That costs a pass, and for each completion and branch as many
    continuations as a sample of the policy would differ from it in tokens, each after those before it.

    The advantages of a completion add up to its reward less the mean reward of the branches from its prompt. The
    trainer has to sample from the whole vocabulary, as it does by default, and to be alone: what processes wait
    for each other here would differ from one to the next.
    """

    def true_advantage(batch: RolloutBatch, engine: Engine) -> Float[Tensor, "B T"]:
        if engine.world_size > 1:
            raise ValueError("oracle: branching rollouts run in one process; train with one")
        args, ids = trainer.args, batch.completions.ids
        noise = SharedNoise(
            branches=branches,
            room=args.max_completion_length,
            vocabulary=trainer.model.get_output_embeddings().weight.shape[0],
            seed=(args.seed, batch.step),
        )
        leaves = _leaves(batch, _drawn(trainer, batch, noise))
        # Siblings that leave the same beginning in the same way share what comes of it.
        begun = {one.key: one for of_branch in leaves for places in of_branch for _, one in places}
        rewards = dict(zip(begun, finish([*begun.values()], noise), strict=True)) if begun else {}
        worth = torch.zeros(ids.shape, device=ids.device)
        for b, of_branch in enumerate(leaves):
            for places in of_branch:
                after = batch.rewards[b] or 0.0  # beyond its last leave a branch is the completion itself
                for t, one in reversed(places):
                    before = rewards[one.key]
                    worth[b, t] += (after - before) / branches
                    after = before
        return worth

    return true_advantage


_Leaves = list[list[list[tuple[int, Begun]]]]
"""By completion and branch: the places where the branch leaves it, in order, and how it goes on from each."""


def _leaves(batch: RolloutBatch, drawn: Int[Tensor, "B M T"]) -> _Leaves:
    completions, student = batch.completions, batch.student
    leaves: _Leaves = []
    for b, row in enumerate(batch.rows):
        ids, trained = int_list(completions.ids[b]), completions.mask[b].tolist()
        prompt = tuple(int_list(student.ids_BP[b][student.attention_BP[b].bool()]))
        leaves.append(
            [
                [
                    (t, Begun(prompt=prompt, written=(*ids[:t], other[t]), branch=m, row=row))
                    for t in range(len(ids))
                    if trained[t] and other[t] != ids[t]
                ]
                for m, other in enumerate(map(int_list, drawn[b]))
            ]
        )
    return leaves


def _drawn(trainer: Any, batch: RolloutBatch, noise: SharedNoise) -> Int[Tensor, "B M T"]:
    """The token that each branch draws in each place of a completion, after the tokens that are really before."""
    completions, (count, width) = batch.completions, batch.completions.ids.shape
    ids = torch.cat([batch.student.ids_BP, completions.ids], -1)
    seen = torch.cat([batch.student.attention_BP, completions.attention], -1)
    own = [noise.rows([m] * width, [*range(width)]).to(ids.device) for m in range(noise.branches)]
    size = max(1, _LOGITS // (width * noise.vocabulary))
    drawn: list[Tensor] = []
    with unnoticed(trainer):
        trainer.model.eval()  # as whoever goes on from there
        for first in range(0, count, size):
            some = slice(first, first + size)
            logits_NTV = trainer.model(
                input_ids=ids[some],
                attention_mask=seen[some],
                position_ids=(seen[some].cumsum(-1) - 1).clamp(min=0),
            ).logits[:, -width - 1 : -1]
            scores = logits_NTV.float() / trainer.args.temperature
            drawn.append(torch.stack([(scores + row_TV).argmax(-1) for row_TV in own], dim=1))
    return torch.cat(drawn)
