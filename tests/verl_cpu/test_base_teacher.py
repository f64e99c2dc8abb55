"""The teacher `base` has the weights that the run began with, however the policy has changed."""

from pathlib import Path

import pytest
import torch

from verl_cpu import harness, reference

ADAPTER = [
    *("actor_rollout_ref.model.lora_rank=8", "actor_rollout_ref.model.lora_alpha=16"),
    "actor_rollout_ref.model.lora.merge=True",  # verl 0.9.1 cannot hand an adapter to vLLM 0.31
    f"{harness.ACTOR}.optim.lr=1e-3",
]


@pytest.fixture(scope="module", params=[[], ADAPTER], ids=["all weights", "adapter"])
def run(request: pytest.FixtureRequest, chain: Path, tmp_path_factory: pytest.TempPathFactory) -> harness.Run:
    settings = [
        *request.param,
        *("trainer.v1.trainer_mode=gear_sync", "+gear.credit=rlsd", "+gear.teacher=base"),
    ]
    return harness.train(tmp_path_factory.mktemp("base"), chain, *settings, steps=3)


def test_the_teacher_stays_the_first_model(run: harness.Run, chain: Path):
    saved = run.watched("credit1")
    first = reference.credited(saved["batch"], chain / "model", "rlsd")
    torch.testing.assert_close(saved["credit"].advantage, first["credit"].advantage, atol=1e-5, rtol=0)
    saved = run.watched("credit3")
    mask = saved["batch"]["completions"].mask & saved["scored_B"][:, None]
    first = reference.credited(saved["batch"], chain / "model", "rlsd")
    seen, there = saved["signals"], first["signals"]
    assert reference.gap(seen.teacher_logprob, there.teacher_logprob, mask) <= 2e-5
    # The student has learned, so the agreement above says something.
    assert reference.gap(seen.student_logprob, there.student_logprob, mask) > 0.05
