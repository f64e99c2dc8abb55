"""Recipes and exported commands, composed by Hydra with the installed verl and checked as a run checks them."""

import copy
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import verl
from omegaconf import OmegaConf, open_dict

from gear_rl.cli.doctor import registration_fault
from gear_rl.engines.verl import checks
from gear_rl.errors import InputError
from gear_rl.runs.verl.hydra_settings import read_config
from gear_rl.runs.verl.launch_files import export, hydra_value, read_run
from support.launching import options, overrides

ROOT = Path(__file__).parents[2]
FSDP2 = "actor_rollout_ref.actor.strategy=fsdp2"
RECIPES = sorted((ROOT / "examples").glob("verl_*.sh"))
ARENA = ["--per_device_train_batch_size", "64", "--held_out", "8", "--model"]
EXPORTS = {
    "chain": [*ARENA, "arena", "--dataset", "arena/easy", "--reward", "arena", "--credit.alpha", "0.5"],
    "errands": [*ARENA, "arena/errands", "--dataset", "arena/errands/easy", "--credit", "gigpo"],
    "adapter": [*ARENA, "arena", "--dataset", "arena/easy", "--reward", "arena", "--lora",
                "{r: 4, target_modules: [q_proj, v_proj]}"],
    "own": [*ARENA, "arena", "--dataset", "arena/easy", "--reward", "arena", "--credit",
            "{name: 'gear_rl.methods.gear:Gear', alpha: 0.5}"],
}  # fmt: skip


def composed(words):
    """verl's whole configuration with the overrides, as its own command composes it."""
    from hydra import compose, initialize_config_dir

    with initialize_config_dir(str(Path(verl.__file__).parent / "trainer" / "config"), version_base=None):
        return compose("ppo_trainer", overrides=list(words))


def checked(words):
    """The configuration and our settings, after the checks of verl's command and ours."""
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config

    config = composed(words)
    validate_config(
        config, use_reference_policy=need_reference_policy(config), use_critic=need_critic(config)
    )
    settings = read_config(config)
    checks.check(config, settings)
    return config, settings


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_is_a_configuration_that_would_run(recipe, tmp_path):
    config, settings = checked(overrides(recipe, tmp_path, sys.executable))
    assert settings.method.name == "gear" and config.trainer.v1.trainer_mode == "gear_sync"
    assert "{privileged_context}\n" in settings.config.template
    gpus = config.trainer.nnodes * config.trainer.n_gpus_per_node
    assert recipe.stem.endswith(f"_{gpus}gpu")
    assert config.data.train_batch_size * config.actor_rollout_ref.rollout.n % gpus == 0
    commented, _ = checked(overrides(recipe, tmp_path, sys.executable, options(recipe)))
    assert commented != config, "the options in the recipe's comments"


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_example_of_the_page_is_a_configuration_that_would_run():
    page = (ROOT / "docs" / "verl.md").read_text(encoding="utf-8")
    command = page.partition("```diff\n")[2].partition("```")[0].splitlines()[1:]
    _, settings = checked([re.sub(r"^[+ ] +", "", line).removesuffix(" \\") for line in command])
    assert settings.method.name == "gear"


SECTION = ["algorithm.adv_estimator=grpo", "trainer.v1.trainer_mode=gear_sync", "+gear.credit=gear"]
KL = ["actor_rollout_ref.actor.use_kl_loss=True", "actor_rollout_ref.actor.kl_loss_coef=0.01"]


@pytest.mark.parametrize(
    ("words", "loaded"),
    [
        (["+gear=gear"], True),
        (["+gear=gear", "trainer.v1.trainer_mode=gear_colocate_async"], True),
        (SECTION, True),
        (["+gear=gear", *KL], True),
        (["+gear=gear", "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=2"], True),
        (["+gear=gear", "gear.teacher=live"], False),
        (["+gear=gear", "gear.teacher=live", *KL], True),
        (["+gear=gear", "actor_rollout_ref.model.lora_rank=8"], False),
        (["+gear=gigpo"], False),
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_base_teacher_loads_verls_reference_and_changes_no_setting(words, loaded):
    from verl.trainer.ppo.utils import Role
    from verl.trainer.ppo.v1 import get_trainer_cls

    rollout = "actor_rollout_ref.rollout"
    own = [FSDP2, f"{rollout}.name=vllm", f"{rollout}.log_prob_micro_batch_size_per_gpu=4"]
    config = composed([*own, *words])
    before = copy.deepcopy(config)
    trainer = get_trainer_cls(config.trainer.v1.trainer_mode)(config)
    trainer._init_resource_pool_mgr()
    role = Role.ActorRolloutRef if loaded else Role.ActorRollout
    assert trainer.role_worker_mapping.keys() == {role} and trainer.mapping[role] == "global_pool"
    assert trainer.use_reference_policy == (loaded and any("kl" in word and "True" in word for word in words))
    assert (
        config.algorithm == before.algorithm
        and config.actor_rollout_ref.actor == before.actor_rollout_ref.actor
    )
    size = before.actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu
    if size is not None:
        assert config.actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu == size


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["actor_rollout_ref.actor.fsdp_config.offload_policy=True"], "fsdp_config.offload_policy: True"),
        (["actor_rollout_ref.ref.ulysses_sequence_parallel_size=2"], "ref.ulysses_.*: 2 divides"),
        (
            ["actor_rollout_ref.ref.fsdp_config.ulysses_sequence_parallel_size=2"],
            "ref.fsdp_config.*: 2 divides",
        ),
        (
            ["distillation.enabled=True", "distillation.distillation_loss.use_task_rewards=False"],
            "distillation.distillation_loss.use_task_rewards: False",
        ),
    ],
)
def test_the_refused_settings_have_verls_names(words, message):
    config = composed(["+gear=gear", FSDP2, *words])
    with pytest.raises(InputError, match=message):
        checks.check(config, read_config(config))


@pytest.mark.parametrize(
    "name", ["fully_async_policy/config/fully_async", "one_step_off_policy/config/one_step_off"]
)
def test_a_command_of_verls_that_reads_no_trainer_mode_is_refused(name):
    theirs = OmegaConf.load(Path(verl.__file__).parent / "experimental" / f"{name}_ppo_trainer.yaml")
    config = composed(["+gear=gear"])
    with open_dict(config):
        config.merge_with({key: theirs[key] for key in theirs if key not in ("defaults", "hydra")})
    with pytest.raises(InputError, match=r"trainer_mode: 'gear_sync' counts in verl.trainer.main_ppo alone"):
        checks.check(config, read_config(config))


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_rollouts_are_divided_among_the_ranks_of_the_actor_alone():
    from transfer_queue import KVBatchMeta
    from verl.trainer.ppo.v1 import get_trainer_cls

    config = composed(["+gear=gear", FSDP2, "gear.teacher=live", "actor_rollout_ref.rollout.name=vllm"])
    trainer = get_trainer_cls("gear_sync")(config)
    trainer.actor_rollout_wg = SimpleNamespace(_dispatch_info={"actor": list(range(8))})
    trainer.resource_pool_manager = SimpleNamespace(get_n_gpus=lambda: 12)  # with a reward model's
    vars(trainer).update(tokenizer=None, _max_positions=None)
    batch = KVBatchMeta(keys=["u0_0_0", "u1_0_0", "u2_0_0"], tags=[{}, {}, {"is_padding": True}])
    engine = trainer._engine(batch, [0, 1], {}, {})
    assert (engine.parts, engine.padding) == (8, 1)


@pytest.mark.parametrize("name", EXPORTS)
def test_an_exported_command_is_a_configuration_that_would_run(name, tmp_path):
    from verl.trainer.ppo.reward import get_custom_reward_fn

    export(read_run(None, EXPORTS[name]), tmp_path / "out", gpus=2)
    config, settings = checked(overrides(tmp_path / "out" / "launch.sh", tmp_path, sys.executable))
    assert config.data.train_files == str(tmp_path / "out" / "train.parquet")
    if name == "errands":
        assert settings.environment == "arena/errands/easy" and settings.method.name == "gigpo"
    else:
        assert settings.config.template == "{prompt}\nref {privileged_context}"
        score = get_custom_reward_fn(config)
        assert score("arena/easy", "ans 45", "45", extra_info={"answer": "45"}) == 1.0
    model = config.actor_rollout_ref.model
    assert (model.lora_rank, model.lora.merge) == ((4, True) if name == "adapter" else (0, False))
    if name in ("chain", "own"):
        assert settings.method.alpha == 0.5


@pytest.mark.parametrize(
    "text",
    ['"', "\\", '\\"', "a\nb", "${x}", "ans (\\d\\d)", "1e5", "null", "{a: b}", "it's", "", "x,y", "ä"],
)
def test_hydra_reads_a_quoted_text_as_it_was(text):
    config = composed([f"trainer.experiment_name={hydra_value(text)}"])
    assert config.trainer.experiment_name == text


def test_the_plugin_is_registered_and_a_broken_one_is_reported(monkeypatch):
    assert registration_fault() is None
    from verl.trainer.ppo.v1.trainer_base import TRAINER_REGISTRY

    monkeypatch.delitem(TRAINER_REGISTRY, "gear_sync")
    assert registration_fault() == "verl has no trainer gear_sync"
