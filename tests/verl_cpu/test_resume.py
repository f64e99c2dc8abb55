"""A killed run on two processes, resumed from verl's checkpoint, gives the credit that it would have given."""

from pathlib import Path

import pytest
import torch

from verl_cpu import harness


@pytest.fixture(scope="module")
def credits(chain: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    """What the credit step of step 3 was given and returned: uninterrupted, and after a resume from step 2."""
    folder = tmp_path_factory.mktemp("resumed")
    settings = [harness.SEEDED, *harness.GEAR, "trainer.save_freq=2", "trainer.resume_mode=auto"]
    with harness.start(folder, chain, *settings, steps=8, ranks=2, rollouts=(8, 8)) as training:
        training.wait_for_step(3, limit=600)
        for worker in harness.processes(training.mark, "WorkerDict"):
            worker.kill()
        first = folder / "first.pt"
        (folder / "credit3.pt").rename(first)
        training.wait(limit=training.seconds + 60)
    with harness.start(folder, chain, *settings, steps=3, ranks=2, rollouts=(8, 8)) as training:
        assert training.wait(limit=600) == 0, training.tail()
        assert [int(step["training/global_step"]) for step in training.steps()][-1:] == [3]
    return [torch.load(path, weights_only=False) for path in (first, folder / "credit3.pt")]


def test_the_next_batch_gets_the_same_credit(credits):
    one, other = (by_rollout(saved) for saved in credits)
    assert one.keys() == other.keys() and len(one) >= 30
    gap = max((one[key][0] - other[key][0]).abs().max().item() for key in one)
    signals = max((one[key][1] - other[key][1]).abs().max().item() for key in one)
    assert gap <= 1e-5 and signals <= 1e-5, (gap, signals)


def by_rollout(saved: dict) -> dict[tuple, tuple[torch.Tensor, torch.Tensor]]:
    """Credit and divergence by problem and tokens: rollouts come in another order in every run."""
    batch, mask = saved["batch"], saved["batch"]["completions"].mask
    rows = {}
    for b, kept in enumerate(mask):
        ids = tuple(batch["completions"].ids[b][kept].tolist())
        key = (batch["rows"][b]["index"], ids)
        rows[key] = (saved["credit"].advantage[b][kept], saved["signals"].divergence[b][kept])
    return rows
