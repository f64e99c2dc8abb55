"""Two processes: the same weights on both, GRPO bit for bit, and metrics that add up."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from engines import probing
from gear_rl import Shuffled
from gear_rl.engines.trl.checkpoints import checked
from gear_rl.methods import Crpo, Gigpo, Igpo, MtGrpo
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


def equal(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_both_processes_end_with_the_same_weights(finished):
    for name in ("grpo", "uniform", "gear", "late", "sdpg"):
        assert equal(weights(finished, name, 0), weights(finished, name, 1)), name


def test_weights_of_one_are_grpo_bit_for_bit(finished):
    assert equal(weights(finished, "uniform", 0), weights(finished, "grpo", 0))
    assert not equal(weights(finished, "gear", 0), weights(finished, "grpo", 0))


def test_metrics_are_of_all_processes(finished):
    ranks = [json.loads((finished / f"{rank}.json").read_text())["gear"] for rank in (0, 1)]
    assert all(found["wrapped"] == "DistributedDataParallel" for found in ranks)
    assert ranks[0]["scored"] != ranks[1]["scored"], "else the lopsided case was not seen"
    for step, entry in enumerate(ranks[0]["history"]):
        assert entry["gear/scored"] == ranks[0]["scored"][step] + ranks[1]["scored"][step]


def test_both_processes_run_as_many_forwards(finished):
    """Sharded models would wait for each other forever otherwise."""
    ranks = [json.loads((finished / f"{rank}.json").read_text())["gear"] for rank in (0, 1)]
    most = [
        max(-(-count // 4) for count in counts) for counts in zip(*(r["scored"] for r in ranks), strict=True)
    ]
    assert ranks[0]["batches"] == ranks[1]["batches"] == most


def test_credit_in_the_loss_is_that_of_a_pass_before_it(finished):
    for rank in (0, 1):
        own, late = weights(finished, "gear", rank), weights(finished, "late", rank)
        for name, value in own.items():
            torch.testing.assert_close(late[name], value, atol=1e-4, rtol=1e-3)
    first, second = (list(read_records(finished / f"{name}.jsonl")) for name in ("gear", "late"))
    assert len(first) == len(second) == 48
    for a, b in zip(first, second, strict=True):
        assert (a.step, a.group, a.ids, a.reward, a.fallback) == (
            b.step,
            b.group,
            b.ids,
            b.reward,
            b.fallback,
        )
        assert a.credit == pytest.approx(b.credit, abs=1e-3)
    ranks = [json.loads((finished / f"{rank}.json").read_text()) for rank in (0, 1)]
    for found in ranks:
        for one, other in zip(found["gear"]["history"], found["late"]["history"], strict=True):
            assert one["gear/scored"] == other["gear/scored"]
            assert one["gear/divergence/mean"] == pytest.approx(other["gear/divergence/mean"], rel=1e-3)


def test_one_process_may_have_nothing_to_distil(finished):
    """Few rows have a context: the terms are logged over both processes, and change the weights of both."""
    ranks = [json.loads((finished / f"{rank}.json").read_text())["sdpg"]["history"] for rank in (0, 1)]
    for one, other in zip(*ranks, strict=True):
        assert one.get("gear/distill/loss") == other.get("gear/distill/loss")
        assert one["gear/distill/non_finite"] == 0.0
    assert any(entry.get("gear/distill/term", 0.0) > 0 for entry in ranks[0])
    assert any(entry["gear/fallback/no_context"] > 0 for entry in ranks[0])
    assert not equal(weights(finished, "sdpg", 0), weights(finished, "grpo", 0))


def test_one_file_holds_the_records_of_both(finished):
    records = list(read_records(finished / "gear.jsonl"))
    groups = [0] * 4 + [1] * 4 + [2] * 4 + [3] * 4
    assert [record.group for record in records] == groups * 3
    history = json.loads((finished / "0.json").read_text())["gear"]["history"]
    first = [record.reward for record in records if record.step == 0]
    assert sum(first) / len(first) == pytest.approx(history[0]["reward"])


def test_siblings_are_found_on_the_other_process(finished):
    records = list(read_records(finished / "sibling.jsonl"))
    assert [record.reward for record in records] == [1.0] + [0.0] * 15
    assert {record.group for record in records} == {0}
    assert [record.context for record in records] == [None] + ["sibling"] * 15
    assert records[0].fallback == "no_context"


def test_the_processes_share_the_solving_and_agree(finished):
    for rank in (0, 1):
        solved = json.loads((finished / f"{rank}.json").read_text())["solved"]
        assert solved == [float(i) for i in range(11)]


def test_a_group_that_is_spread_over_both_gets_the_credit_that_it_gets_in_one(finished):
    ranks = [torch.load(finished / f"credits-{rank}.pt", weights_only=True) for rank in (0, 1)]
    advantage_B, signals = probing.torn()
    for method in (Gigpo(turn_rewards=True), MtGrpo(), Igpo(), Crpo(), Shuffled(of=Gigpo())):
        whole = method(advantage_B, signals).advantage
        first, second = (found[method.name] for found in ranks)
        assert first.shape == (6, 7) and second.shape == (6, 11)
        torch.testing.assert_close(first, whole[:6, :7])
        torch.testing.assert_close(second, whole[6:])
        apart = method(advantage_B[:6], probing.part(signals, slice(0, 6))).advantage
        assert not torch.allclose(first, apart), "else nothing is shown"


def test_both_resume_bit_for_bit_from_the_newest_whole_checkpoint(finished):
    for rank in (0, 1):
        assert equal(weights(finished, "resumed", rank), weights(finished, "whole", 0)), rank
        refused = json.loads((finished / f"refused-{rank}.json").read_text())
        assert "checkpoint-3 was made with another configuration: beta 0.0 is now 0.1" in refused
        assert (finished / "resuming" / "checkpoint-2" / f"rng_state_{rank}.pth").exists()


@pytest.mark.parametrize("kind", ["SHARDED_STATE_DICT", "FULL_STATE_DICT"])
def test_weights_sharded_by_fsdp_are_resumed_bit_for_bit_with_their_teacher(finished, kind):
    folder = finished / kind
    for rank in (0, 1):
        assert equal(weights(folder, "resumed", rank), weights(folder, "whole", 0)), rank
        refused = json.loads((folder / f"refused-{rank}.json").read_text())
        assert "checkpoint-3 was made with another configuration: beta 0.0 is now 0.1" in refused
    checkpoint = folder / "resuming" / "checkpoint-3"
    found = {path.relative_to(checkpoint).as_posix() for path in checkpoint.rglob("*") if path.is_file()}
    assert found == {*checked(checkpoint).files, "manifest.json"}
    parts = {"SHARDED_STATE_DICT": ["pytorch_model_fsdp_0/__1_0.distcp", "optimizer_0/__1_0.distcp"]}
    parts["FULL_STATE_DICT"] = ["pytorch_model_fsdp.bin", "optimizer.bin"]
    assert found > {*parts[kind], "teacher.safetensors", "rollouts-1.pt", "rng_state_1.pth"}


@pytest.mark.parametrize("kind", ["SHARDED_STATE_DICT", "FULL_STATE_DICT"])
def test_weights_sharded_by_fsdp_get_the_credit_of_whole_ones(finished, kind):
    whole, parts = finished, finished / kind
    first, second = (list(read_records(folder / "resuming" / "records.jsonl")) for folder in (whole, parts))
    assert [record.step for record in first] == [0] * 16 + [2] * 16
    for a, b in zip(first, second, strict=True):
        assert (a.step, a.ids, a.reward, a.fallback) == (b.step, b.ids, b.reward, b.fallback)
        assert a.credit == pytest.approx(b.credit, abs=1e-3)
    for name, value in weights(whole, "whole", 0).items():
        torch.testing.assert_close(weights(parts, "whole", 0)[name], value, atol=1e-3, rtol=1e-3)
