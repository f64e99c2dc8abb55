"""Two processes: the same weights on both, GRPO bit for bit, and metrics that add up."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from engines import probing
from engines.running import same
from gear_rl.engines.trl.checkpoints import check_checkpoint
from gear_rl.records import read_records

TESTS = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def finished(tiny_model, tmp_path_factory) -> Path:
    """What two processes have left: a folder."""
    folder = tmp_path_factory.mktemp("ddp")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    environment = os.environ | {
        "PYTHONPATH": f"{TESTS}{os.pathsep}{TESTS.parent / 'src'}",
        "OMP_NUM_THREADS": "1",
    }
    script = [str(TESTS / "engines" / "ddp_worker.py"), tiny_model, str(folder)]
    done = subprocess.run(
        [*command, *script], env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return folder


def weights(folder: Path, name: str, rank: int) -> dict[str, torch.Tensor]:
    return torch.load(folder / f"{name}-{rank}.pt", weights_only=True)


def found_by(folder: Path, name: str) -> list:
    """What each process has written of a run."""
    return [json.loads((folder / f"{rank}.json").read_text())[name] for rank in (0, 1)]


def same_records(first: Path, second: Path, count: int) -> None:
    pairs = list(zip(read_records(first), read_records(second), strict=True))
    assert len(pairs) == count
    for a, b in pairs:
        for name in ("step", "group", "ids", "reward", "fallback"):
            assert getattr(a, name) == getattr(b, name), name
        assert a.credit == pytest.approx(b.credit, abs=1e-3)


def test_both_processes_end_with_the_same_weights_and_uniform_is_grpo_bit_for_bit(finished):
    for name in ("grpo", "uniform", "gear", "sdpg", "opsd", "cast", "agent_opsd"):
        assert same(weights(finished, name, 0), weights(finished, name, 1)), name
    grpo = weights(finished, "grpo", 0)
    assert same(weights(finished, "uniform", 0), grpo)
    assert not any(same(weights(finished, name, 0), grpo) for name in ("gear", "sdpg", "opsd", "cast"))
    # One turn each, which AgentOPSD leaves to GRPO.
    assert same(weights(finished, "agent_opsd", 0), grpo)


def test_metrics_are_of_all_processes_which_run_as_many_forwards(finished):
    """Sharded models would wait for each other forever otherwise."""
    first, second = found_by(finished, "gear")
    assert first["wrapped"] == second["wrapped"] == "DistributedDataParallel"
    assert first["scored"] != second["scored"], "else the lopsided case was not seen"
    pairs = list(zip(first["scored"], second["scored"], strict=True))
    assert [entry["gear/scored"] for entry in first["history"]] == [sum(pair) for pair in pairs]
    assert first["batches"] == second["batches"] == [-(-max(pair) // 4) for pair in pairs]


def test_one_process_may_have_nothing_to_distil(finished):
    """Few rows have a context: the terms are logged over both processes, and change the weights of both."""
    first, second = (found["history"] for found in found_by(finished, "sdpg"))
    for one, other in zip(first, second, strict=True):
        assert one.get("gear/distill/loss") == other.get("gear/distill/loss")
        assert one["gear/distill/non_finite"] == 0.0
    assert any(entry.get("gear/distill/term", 0.0) > 0 for entry in first)
    assert any(entry["gear/fallback/no_context"] > 0 for entry in first)


def test_siblings_are_found_on_the_other_process(finished):
    records = list(read_records(finished / "sibling.jsonl"))
    assert [record.reward for record in records] == [1.0] + [0.0] * 15
    assert {record.group for record in records} == {0}
    assert [record.context for record in records] == [None] + ["sibling"] * 15
    assert records[0].fallback == "no_context"


def test_a_group_that_is_spread_over_both_gets_the_credit_that_it_gets_in_one(finished):
    ranks = [torch.load(finished / f"credits-{rank}.pt", weights_only=True) for rank in (0, 1)]
    advantage_B, signals = probing.torn()
    for method in probing.COMPARING:
        whole = method(advantage_B, signals).advantage
        first, second = (found[method.name] for found in ranks)
        assert first.shape == (6, 7) and second.shape == (6, 11)
        torch.testing.assert_close(first, whole[:6, :7])
        torch.testing.assert_close(second, whole[6:])
        apart = method(advantage_B[:6], probing.part(signals, slice(0, 6))).advantage
        assert not torch.allclose(first, apart), "else nothing is shown"


SHARDS = {"pytorch_model_fsdp_0/__1_0.distcp", "optimizer_0/__1_0.distcp"}


@pytest.mark.parametrize("sharded", [False, True])
def test_both_resume_bit_for_bit_from_the_newest_whole_checkpoint(finished, sharded):
    folder = finished / "sharded" if sharded else finished
    for rank in (0, 1):
        assert same(weights(folder, "resumed", rank), weights(folder, "whole", 0)), rank
        refused = json.loads((folder / f"refused-{rank}.json").read_text())
        assert "checkpoint-3 was made with another configuration: beta 0.0 is now 0.1" in refused
    checkpoint = folder / "resuming" / "checkpoint-3"
    found = {path.relative_to(checkpoint).as_posix() for path in checkpoint.rglob("*") if path.is_file()}
    assert found == {*check_checkpoint(checkpoint).files, "manifest.json"}
    assert (found >= SHARDS) is sharded
    assert found > {"teacher.safetensors", "rollouts-1.pt", "rng_state_1.pth"}


def test_weights_sharded_by_fsdp_get_the_credit_of_whole_ones(finished):
    sharded = finished / "sharded"
    same_records(*(folder / "resuming" / "records.jsonl" for folder in (finished, sharded)), count=32)
    for name, value in weights(finished, "whole", 0).items():
        torch.testing.assert_close(weights(sharded, "whole", 0)[name], value, atol=1e-3, rtol=1e-3)
