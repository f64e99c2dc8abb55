"""The same tokens, weights and advantages give the same signals and credit under verl as under TRL."""

import os
import subprocess
from pathlib import Path

import pytest
import torch

import gear_rl
from verl_cpu import harness, reference

TRL_PYTHON = os.environ.get("TRL_PYTHON", "")
"""The interpreter of the environment with TRL, which cannot be this one."""


@pytest.fixture(scope="module")
def under_verl(gear: harness.Run) -> dict:
    """The rollouts of the first step, before any update, and their credit."""
    return gear.watched("credit1")


def test_credit_is_that_of_one_process(under_verl: dict, chain: Path):
    alone = reference.credited(under_verl["batch"], chain / "model", "gear")
    assert_same(under_verl, {"signals": alone.signals, "credit": alone.credit, "scored_B": alone.scored_B})


def test_what_the_policy_is_updated_with_is_the_credit(under_verl: dict, gear: harness.Run):
    """Rollout by rollout, without padding; the rows have another order by then."""
    mask = under_verl["batch"]["completions"].attention.bool()
    credits = under_verl["credit"].advantage
    ids = under_verl["batch"]["completions"].ids
    given = sorted((ids[b][kept].tolist(), credits[b][kept].tolist()) for b, kept in enumerate(mask))
    saved = gear.watched("update1")
    pairs = zip(saved["responses"], saved["advantages"], strict=True)
    assert sorted((r.tolist(), a.tolist()) for r, a in pairs) == given


@pytest.mark.skipif(not TRL_PYTHON, reason="TRL_PYTHON names no interpreter with TRL")
def test_credit_is_that_of_trl(under_verl: dict, gear: harness.Run, chain: Path, tmp_path: Path):
    script = harness.HERE / "under_trl.py"
    command = [TRL_PYTHON, script, gear.folder / "credit1.pt", chain / "model", tmp_path / "trl.pt"]
    paths = {"PYTHONPATH": str(Path(gear_rl.__file__).parents[1]), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [*map(str, command)], capture_output=True, text=True, timeout=300, env=os.environ | paths
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert_same(under_verl, torch.load(tmp_path / "trl.pt", weights_only=False))


def assert_same(one: dict, other: dict) -> None:
    """Signals, credit and segments of the same rollouts."""
    scored = one["scored_B"]
    assert torch.equal(scored, other["scored_B"]) and scored.sum() > 30
    mask = one["signals"].mask & scored[:, None]
    assert torch.equal(one["signals"].mask, other["signals"].mask)
    ours, theirs = one["signals"], other["signals"]
    names = [name for name in ("divergence", "student_entropy") if getattr(ours, name) is not None]
    assert "divergence" in names and ours.divergence[mask].max() > 0.1
    for name in names:
        gap = (getattr(ours, name) - getattr(theirs, name))[mask].abs().max()
        assert gap <= 1e-5, f"{name}: {gap}"
    assert torch.equal(one["credit"].segment_id, other["credit"].segment_id)
    torch.testing.assert_close(one["credit"].advantage, other["credit"].advantage, atol=1e-5, rtol=0)
