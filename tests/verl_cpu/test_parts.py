"""Among how many ranks the driver divides the rollouts: those of the actor, and of no other pool."""

from types import SimpleNamespace

import pytest
import torch
from omegaconf import OmegaConf
from transfer_queue import KVBatchMeta

from gear_rl.credit.config import CreditConfig
from gear_rl.credit.metrics import SegmentCheck
from gear_rl.engines.verl.passes import VerlEngine
from gear_rl.runs.verl.trainer import CreditTrainer
from gear_rl.signals.batch import Completions, ForwardRequest, Prompts

RANKS = 8


def engine_of(rows: int) -> VerlEngine:
    """The engine of a trainer whose actor has 8 ranks, beside a pool of 4 for a reward model."""
    trainer = object.__new__(CreditTrainer)
    trainer.config = OmegaConf.create(
        {"actor_rollout_ref": {"rollout": {"temperature": 1.0}, "actor": {}}, "data": {}}
    )
    trainer.credit, trainer.tokenizer = SimpleNamespace(config=CreditConfig()), None
    trainer.actor_rollout_wg = SimpleNamespace(_dispatch_info={"actor": list(range(RANKS))})
    trainer.resource_pool_manager = SimpleNamespace(get_n_gpus=lambda: RANKS + 4)
    vars(trainer).update(_max_positions=None, _segment_check=SegmentCheck())
    keys = [f"u{b}_0_0" for b in range(rows)]
    return trainer._engine(KVBatchMeta(keys=keys, tags=[{}] * rows), range(rows), {}, {})


def request_of(rows: int, group: torch.Tensor | None) -> ForwardRequest:
    ids = torch.ones(rows, 3).long()
    return ForwardRequest(
        needs=() if group is None else ("transport_distance",),
        step=0,
        completions=Completions(ids=ids, attention=ids, mask=ids.bool()),
        student=Prompts(ids_BP=ids, attention_BP=ids),
        teachers=[],
        scored_B=torch.arange(rows) < rows // 2,
        inputs={} if group is None else {"judged_group_B": group},
    )


@pytest.mark.parametrize("rows", [16, 48])
def test_every_rank_of_the_actor_has_as_much_to_score(rows: int):
    request = request_of(rows, None)
    order = torch.tensor(engine_of(rows)._places(request)).view(RANKS, -1)
    assert sorted(order.flatten().tolist()) == list(range(rows))
    assert request.scored_B[order].sum(-1).tolist() == [rows // RANKS // 2] * RANKS


@pytest.mark.parametrize("rows", [16, 48])
def test_every_rank_of_the_actor_has_whole_groups(rows: int):
    group = torch.arange(rows) % RANKS
    order = torch.tensor(engine_of(rows)._places(request_of(rows, group))).view(RANKS, -1)
    assert (group[order] == group[order][:, :1]).all()


def test_groups_that_the_ranks_would_split_are_refused():
    # Twelve groups of four: whole in twelve parts, but not on eight ranks.
    with pytest.raises(ValueError, match="12 prompts cannot be divided evenly among 8 ranks"):
        engine_of(48)._places(request_of(48, torch.arange(48) // 4))
