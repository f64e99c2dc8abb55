"""`use_remove_padding=True` is verl's default: its passes pack the rows, and the credit step's pad them."""

import pytest
import torch

from verl_cpu import harness

REMOVED = "actor_rollout_ref.model.use_remove_padding=True"


@pytest.fixture(scope="module")
def packed(chain, tmp_path_factory):
    """The two steps of `gear`, without padding."""
    folder = tmp_path_factory.mktemp("packed")
    return harness.train(folder, chain, harness.SEEDED, *harness.GEAR, REMOVED, steps=2)


def test_the_signals_are_those_of_the_padded_run(gear, packed):
    theirs, ours = (by_rollout(run.watched("credit1")) for run in (gear, packed))
    assert theirs.keys() == ours.keys() and len(ours) >= 100
    for name in ("divergence", "student_logprob", "advantage"):
        torch.testing.assert_close(
            torch.cat([ours[key][name] for key in ours]),
            torch.cat([theirs[key][name] for key in ours]),
            atol=2e-5,
            rtol=2e-5,
        )


def test_verls_packed_log_probs_are_those_of_the_credit_step(packed):
    assert all(gap < 1e-4 for gap in packed.column("gear/engine/log_prob_gap"))


@pytest.mark.parametrize("name", ["actor/pg_loss", "actor/grad_norm", "critic/rewards/mean"])
def test_losses_and_gradients_are_those_of_the_padded_run(gear, packed, name):
    assert packed.column(name) == pytest.approx(gear.column(name), rel=1e-3, abs=1e-6)


def by_rollout(saved):
    """Signals and credit by problem and sampled tokens: rollouts come in another order in every run."""
    batch, rows = saved["batch"], {}
    for b, kept in enumerate(batch["completions"].mask):
        key = (batch["rows"][b]["index"], *batch["completions"].ids[b][kept].tolist())
        signals = {n: getattr(saved["signals"], n)[b][kept] for n in ("divergence", "student_logprob")}
        rows[key] = {**signals, "advantage": saved["credit"].advantage[b][kept]}
    return rows
