"""What cannot run in verl is refused, with what would."""

import pytest

from gear_rl.engines.verl.checks import compares_groups, reads_reference
from gear_rl.errors import InputError
from runs.test_verl_hydra_settings import ACTOR, check, config_of


@pytest.mark.parametrize(
    ("section", "changes", "message"),
    [
        ({}, {"trainer.v1.trainer_mode": "sync"}, r"trainer_mode: 'sync' does not assign token credit"),
        ({}, {"trainer.use_v1": False}, r"trainer\.use_v1: False"),
        ({"credit": "opsd"}, {}, r"gear\.credit: 'opsd' adds a divergence .*; set gear\.sampled=true"),
        ({"credit": "uniform+sdpo"}, {}, r"gear\.credit: 'mixed' adds a divergence"),
        (
            {"credit": "sdpg", "sampled": True},
            {},
            r"gear\.anchor: 'urkl' .*; set it to none, and .*use_kl_loss=True .* mse \(urkl\)",
        ),
        (
            {"credit": "opsd", "sampled": True},
            {f"{ACTOR}.policy_loss.loss_mode": "geo_mean"},
            r"'geo_mean' averages",
        ),
        ({"privileged_sources": ["function"]}, {}, r"gear\.privileged_sources: 'function' needs a function"),
        (
            {"credit": "rlsd", "teacher": None},
            {},
            r"gear\.teacher: 'sync' \(given, or the default of 'rlsd'\) .*or name a gear\.teacher_model",
        ),
        (
            {"teacher": "base"},
            {"actor_rollout_ref.model.lora_adapter_path": "mine"},
            r"lora_adapter_path: 'mine' is trained on, .* set gear\.teacher=live",
        ),
        (
            {"credit": "cast", "teacher": "live"},
            {},
            r"gear\.teacher_model_kind: 'live' .* is the student itself",
        ),
        (
            {},
            {"async_training.staleness_threshold": 0.1},
            r"trainer_mode: 'gear_sync' counts in .*main_ppo alone",
        ),
        ({}, {"rollout.nnodes": 1}, r"trainer_mode: 'gear_sync' counts in .*main_ppo alone"),
        ({}, {f"{ACTOR}.strategy": "fsdp"}, r"actor\.strategy: 'fsdp' .*; set it to fsdp2"),
        ({"teacher": "base"}, {"actor_rollout_ref.ref.strategy": "fsdp"}, r"ref\.strategy: 'fsdp'"),
        ({}, {f"{ACTOR}.fsdp_config.offload_policy": True}, r"offload_policy: True"),
        ({}, {f"{ACTOR}.ulysses_sequence_parallel_size": 2}, r"ulysses_.*: 2 divides"),
        (
            {},
            {"distillation.enabled": True, "distillation.distillation_loss.use_task_rewards": False},
            r"distillation_loss\.use_task_rewards: False",
        ),
        ({}, {"actor_rollout_ref.model.use_fused_kernels": True}, r"use_fused_kernels: True"),
        ({}, {"algorithm.adv_estimator": "gae"}, r"adv_estimator: 'gae' gives every token"),
        ({}, {f"{ACTOR}.policy_loss.loss_mode": "geo_mean"}, r"'geo_mean' averages"),
    ],
)
def test_what_cannot_run_is_refused_with_what_would(section, changes, message):
    with pytest.raises(InputError, match=message):
        check(config_of(section, changes))


@pytest.mark.parametrize(
    ("section", "rank", "reads"),
    [
        ({"teacher": None}, 0, True),
        ({"teacher": "base"}, 8, False),
        ({"credit": "gigpo", "teacher": "base"}, 0, False),
        ({"credit": "uniform", "teacher": None, "teacher_model": "x"}, 0, False),
    ],
)
def test_the_base_teacher_without_lora_reads_verls_reference(section, rank, reads):
    config = config_of(section, {"actor_rollout_ref.model.lora_rank": rank})
    assert reads_reference(config, check(config)) == reads


@pytest.mark.parametrize(
    ("estimator", "in_reward", "compares"),
    [("grpo", False, True), ("grpo", True, False), ("remax", False, False)],
)
def test_a_divergence_in_the_reward_or_another_baseline_gives_equal_rewards_an_advantage(
    estimator, in_reward, compares
):
    changes = {"algorithm.adv_estimator": estimator, "algorithm.use_kl_in_reward": in_reward}
    assert compares_groups(config_of({}, changes)) == compares
