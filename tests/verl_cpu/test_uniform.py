"""With the method that changes nothing, our trainer is verl's own."""

import pytest
import torch

from gear_rl.records import read_records
from verl_cpu.harness import Run


@pytest.mark.parametrize("step", [1, 2])
def test_the_policy_is_updated_with_the_same_advantages(stock: Run, uniform: Run, step: int):
    theirs, ours = stock.by_place(step), uniform.by_place(step)
    assert theirs.keys() == ours.keys() and len(ours) == 16 * 8
    for place, row in theirs.items():
        for name, values in row.items():
            assert torch.equal(values, ours[place][name]), f"{name} of rollout {place}"


@pytest.mark.parametrize("name", ["actor/pg_loss", "actor/grad_norm", "actor/entropy", "critic/rewards/mean"])
def test_losses_and_gradients_are_the_same(stock: Run, uniform: Run, name: str):
    # Rollouts come in another order in every run, which moves the last bits of a sum.
    assert uniform.column(name) == pytest.approx(stock.column(name), rel=1e-4, abs=1e-6)


def test_the_credit_step_ran_all_the_same(uniform: Run):
    assert any(name.startswith("gear/") for name in uniform.steps[0])


def test_the_records_lie_beside_verls_checkpoints_and_replace_no_others(uniform: Run):
    folder = uniform.folder / "checkpoints"
    assert len(list(read_records(folder / "records.jsonl"))) == 2 * 16 * 8
    assert (folder / "records.1.jsonl").read_text() == "a run before\n"
