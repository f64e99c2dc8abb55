"""Every signal of a pass on a model that FSDP 2 has sharded over two processes is that of the whole model."""

import copy
import os
import socket
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.fsdp import fully_shard

from gear_rl.arena.model import load
from gear_rl.engine import ForwardRequest
from gear_rl.model.teacher import Teacher
from gear_rl.rollouts import Completions, left_padded
from gear_rl.signals.confidence import AnswerConfidence
from gear_rl.signals.passes import ModelPasses
from gear_rl.signals.saliency import AnswerActivation, AnswerGradient, AnswerOcclusion
from gear_rl.signals.signal import FOLD_SIGNALS
from gear_rl.signals.transport import TransportDistance

RANKS, ROWS, TOKENS = 2, 8, 12
# POT, which solves transport, is an extra of its own (`shear`).
OWN_PASSES = (AnswerOcclusion(), AnswerGradient(), AnswerActivation(), AnswerConfidence())
MADE = {signal.name: signal for signal in (*FOLD_SIGNALS, *OWN_PASSES)}
MADE |= {"transport_distance": TransportDistance(4, 2)} if find_spec("ot") else {}
SIGNALS = sorted(MADE)


def request_of(name: str, rows: torch.Tensor) -> ForwardRequest:
    """One signal of some rows of a batch; one rank has more of them to score than the other."""
    ids = torch.randint(5, 300, (ROWS, TOKENS), generator=torch.Generator().manual_seed(0))
    attention = torch.ones(ROWS, TOKENS, dtype=torch.long)
    attention[1, 9:] = attention[5, 7:] = 0
    region = torch.zeros_like(ids)
    region[:, 4:6] = 1

    def prompts(length: int) -> Any:
        return left_padded([range(5, 5 + length + int(r) % 3) for r in rows], 0)

    return ForwardRequest(
        needs=(MADE[name],),
        step=1,
        completions=Completions(ids=ids[rows], attention=attention[rows], mask=attention[rows].bool()),
        student=prompts(4),
        teachers=[prompts(9)],
        scored_B=torch.tensor([1, 1, 1, 1, 1, 0, 0, 0]).bool()[rows],
        inputs={
            "answer_region": region[rows],
            "answer_ids_BN": torch.tensor([[7, 8]] * len(rows)),
            "judged_group_B": (torch.arange(ROWS) // 4)[rows],
            "success_B": (torch.arange(ROWS) % 2 == 1)[rows],
        },
    )


def largest(count: int) -> int:
    number = torch.tensor(count)
    dist.all_reduce(number, op=dist.ReduceOp.MAX)
    return int(number)


def score(rank: int, port: int, folder: str) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    model = load()[0].float().eval()
    whole = copy.deepcopy(model)
    for layer in model.model.layers:
        fully_shard(layer)
    fully_shard(model)
    rows = torch.arange(rank * ROWS // RANKS, (rank + 1) * ROWS // RANKS)
    same: dict[str, Any] = {"pad_id": 0, "teacher": Teacher(), "reference": Teacher()}
    pairs = {}
    for name in SIGNALS:
        sharded = ModelPasses(model=model, largest=largest, share_prompts=False, batch_size=2, **same)
        alone = ModelPasses(model=whole, batch_size=2, **same)
        pairs[name] = [passes.run(request_of(name, rows))[name] for passes in (sharded, alone)]
    assert all(parameter.grad is None for parameter in model.parameters())
    torch.save(pairs, Path(folder) / f"{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, list[torch.Tensor]]]:
    folder = tmp_path_factory.mktemp("sharded")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(score, args=(port, str(folder)), nprocs=RANKS)
    return [torch.load(folder / f"{rank}.pt") for rank in range(RANKS)]


@pytest.mark.parametrize("name", SIGNALS)
def test_a_sharded_model_gives_the_signal_of_the_whole_one(pairs, name: str):
    for sharded, alone in (rank[name] for rank in pairs):
        torch.testing.assert_close(sharded, alone, atol=1e-5, rtol=1e-4)
    assert any(alone.abs().max() > 0 for _, alone in (rank[name] for rank in pairs))
