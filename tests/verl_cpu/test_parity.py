"""The same tokens, weights and advantages give the same signals and credit under verl as under TRL."""

from pathlib import Path

import pytest

from verl_cpu import reference
from verl_cpu.harness import Run


def test_what_the_policy_is_updated_with_is_the_credit(gear: Run):
    """Rollout by rollout, without padding: for the update verl orders them anew."""
    saved, update = gear.watched("credit1"), gear.watched("update1")
    completions, credit = saved["batch"]["completions"], saved["credit"].advantage
    rows = enumerate(completions.attention.bool())
    given = sorted((completions.ids[b][kept].tolist(), credit[b][kept].tolist()) for b, kept in rows)
    pairs = zip(update["responses"], update["advantages"], strict=True)
    assert sorted((ids.tolist(), advantage.tolist()) for ids, advantage in pairs) == given


def test_credit_and_loss_are_those_of_trl(gear: Run, chain: Path, tmp_path: Path):
    saved = gear.watched("credit1")
    under_trl = reference.under_trl(gear.folder / "credit1.pt", chain / "model", tmp_path / "trl.pt")
    reference.assert_same(saved, under_trl, at_least=64)
    assert gear.column("actor/pg_loss")[0] == pytest.approx(under_trl["loss"], abs=1e-6)
