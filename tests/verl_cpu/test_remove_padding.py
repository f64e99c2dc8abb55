"""`use_remove_padding=True` is verl's default: its passes pack the rows, and the credit step's pad them."""

import pytest
import torch

from verl_cpu import harness, reference

REMOVED = "actor_rollout_ref.model.use_remove_padding=True"


def test_a_packed_run_gives_the_signals_and_losses_of_a_padded_one(gear, chain, tmp_path):
    packed = harness.train(tmp_path, chain, harness.SEEDED, *harness.GEAR, REMOVED, steps=2)
    theirs, ours = (reference.by_rollout(run.watched("credit1")) for run in (gear, packed))
    assert theirs.keys() == ours.keys() and len(ours) >= 100
    for name in ("divergence", "student_logprob", "advantage"):
        pair = [torch.cat([rows[key][name] for key in ours]) for rows in (ours, theirs)]
        torch.testing.assert_close(*pair, atol=2e-5, rtol=2e-5)
    assert all(gap < 1e-4 for gap in packed.column("gear/engine/log_prob_gap"))
    for name in ("actor/pg_loss", "actor/grad_norm", "critic/rewards/mean"):
        assert packed.column(name) == pytest.approx(gear.column(name), rel=1e-3, abs=1e-6), name
