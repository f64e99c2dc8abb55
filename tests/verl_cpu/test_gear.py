"""Training with GEAR on two ranks, and what a run does that loses one of its workers."""

import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from gear_rl.records import Record, read_records
from verl_cpu import harness, reference

STEPS = 8
"""After so many a worker is killed."""


@dataclass(frozen=True, kw_only=True)
class Broken:
    """A run that learned for some steps, and then lost a worker."""

    folder: Path
    rewards: list[float]
    """The mean reward of each step before."""
    records: list[Record]
    status: int
    seconds: float
    """From the loss to the end of the run."""
    more_steps: int
    """How many steps were logged after it."""
    end: str
    """What the run said last."""


@pytest.fixture(scope="module")
def broken(chain: Path, tmp_path_factory: pytest.TempPathFactory) -> Broken:
    folder = tmp_path_factory.mktemp("broken")
    record = f"+gear.record_file={folder}/records.jsonl"
    with harness.start(folder, chain, *harness.GEAR, record, steps=50, ranks=2) as training:
        training.wait_for_step(STEPS, limit=900)
        learned = training.steps()
        workers = harness.processes(training.mark, "WorkerDict")
        assert len(workers) == 2, [p.cmdline() for p in harness.processes(training.mark)]
        workers[-1].kill()
        killed = time.monotonic()
        status = training.wait(limit=training.seconds + 60)
        return Broken(
            folder=folder,
            rewards=[step["critic/rewards/mean"] for step in learned[:STEPS]],
            records=list(read_records(folder / "records.jsonl")),
            status=status,
            seconds=time.monotonic() - killed,
            more_steps=len(training.steps()) - len(learned),
            end=training.tail(200),
        )


def test_the_policy_learns_from_its_credit(broken: Broken):
    assert broken.rewards[0] < 0.35 and broken.rewards[-1] > 0.55, broken.rewards


def test_the_credit_differs_from_the_advantage(broken: Broken):
    used = [record for record in broken.records if record.advantage != 0]
    spread = [max(record.weight) - min(record.weight) for record in used if record.fallback is None]
    assert len(spread) > 0.9 * len(used)
    assert sum(width > 0.1 for width in spread) > 0.5 * len(spread)


def test_the_ranks_together_give_the_credit_of_one_process_and_of_trl(
    broken: Broken, chain: Path, tmp_path: Path
):
    path = broken.folder / "credit1.pt"
    saved = torch.load(path, weights_only=False)
    alone = reference.credited(saved["batch"], chain / "model", "gear")
    reference.assert_same(saved, alone, at_least=64)
    reference.assert_same(saved, reference.under_trl(path, chain / "model", tmp_path / "trl.pt"), at_least=64)


def test_a_lost_worker_ends_the_run_at_once_and_by_name(broken: Broken):
    assert broken.status != 0
    assert broken.seconds < 30
    assert "ActorDiedError" in broken.end


def test_a_run_never_goes_on_without_its_workers(broken: Broken):
    # The step in which the worker is killed may have been over for the loss already, and be logged.
    assert broken.more_steps <= 1
