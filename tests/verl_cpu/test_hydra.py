"""Recipes and exported commands, composed by Hydra with the installed verl and checked as a run checks them."""

import sys
from pathlib import Path

import pytest
import verl

from gear_rl.runs.verl.checks import check
from gear_rl.runs.verl.export import export, read_run
from gear_rl.runs.verl.launch import Cluster, hydra_value
from gear_rl.runs.verl.registration import registration_fault
from support.launching import options, overrides

ROOT = Path(__file__).parents[2]
RECIPES = sorted((ROOT / "examples").glob("verl_*.sh"))
every_recipe = pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
ARENA = ["--per_device_train_batch_size", "64", "--held_out", "8", "--model"]
EXPORTS = {
    "chain": [*ARENA, "arena", "--dataset", "arena/easy", "--reward", "arena", "--credit.alpha", "0.5"],
    "ledger": [*ARENA, "arena/ledger", "--dataset", "arena/ledger/easy", "--credit", "gigpo"],
    "base": [*ARENA, "arena", "--dataset", "arena/easy", "--reward", "arena", "--teacher_model_kind", "base"],
    "wrapped": [*ARENA, "arena", "--dataset", "arena/easy", "--reward", "arena", "--credit",
                "{name: shuffled, of: {name: rlsd}}", "--teacher_model_kind", "live"],
    "own": [*ARENA, "arena", "--dataset", "arena/easy", "--reward", "arena", "--credit",
            "{name: 'gear_rl.methods.gear:Gear', alpha: 0.5}"],
}  # fmt: skip


def composed(words):
    """verl's whole configuration with the overrides, as its own command composes it."""
    from hydra import compose, initialize_config_dir

    with initialize_config_dir(str(Path(verl.__file__).parent / "trainer" / "config"), version_base=None):
        return compose("ppo_trainer", overrides=list(words))


def checked(words):
    """The configuration, after the checks that verl's command makes of it."""
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config

    config = composed(words)
    validate_config(
        config, use_reference_policy=need_reference_policy(config), use_critic=need_critic(config)
    )
    return config


@every_recipe
def test_a_recipe_is_a_configuration_that_would_run(recipe, tmp_path):
    config = checked(overrides(recipe, tmp_path, sys.executable))
    settings = check(config)
    assert settings.method.name == "gear" and config.trainer.v1.trainer_mode == "gear_sync"
    assert "{privileged_context}\n" in settings.config.template
    gpus = config.trainer.nnodes * config.trainer.n_gpus_per_node
    assert recipe.stem.endswith(f"_{gpus}gpu")
    assert config.data.train_batch_size * config.actor_rollout_ref.rollout.n % gpus == 0


@every_recipe
def test_every_option_in_a_comment_of_a_recipe_is_one(recipe, tmp_path):
    taken = options(recipe)
    assert taken
    plain = composed(overrides(recipe, tmp_path, sys.executable))
    config = checked(overrides(recipe, tmp_path, sys.executable, taken))
    assert config != plain
    check(config)


def test_a_wrong_setting_of_a_recipe_would_be_caught(tmp_path):
    with pytest.raises(Exception, match="alhpa"):
        composed(overrides(RECIPES[0], tmp_path, sys.executable, ["gear.alhpa=1"]))


@pytest.mark.parametrize("name", EXPORTS)
def test_an_exported_command_is_a_configuration_that_would_run(name, tmp_path):
    done = export(read_run(None, EXPORTS[name]), tmp_path / "out", Cluster(gpus=2))
    config = checked(overrides(done.command, tmp_path, sys.executable))
    settings = check(config)
    assert config.data.train_files == str(tmp_path / "out" / "train.parquet")
    if name == "ledger":
        assert settings.environment == "arena/ledger/easy" and settings.method.name == "gigpo"
    else:
        assert settings.config.template == "{prompt}\nref {privileged_context}"
    if name in ("chain", "own"):
        assert settings.method.alpha == 0.5
    assert config.actor_rollout_ref.actor.use_kl_loss == (name == "base")


def test_verl_loads_the_exported_reward(tmp_path):
    from verl.trainer.ppo.reward import get_custom_reward_fn

    done = export(read_run(None, EXPORTS["chain"]), tmp_path / "out", Cluster(gpus=2))
    score = get_custom_reward_fn(composed(overrides(done.command, tmp_path, sys.executable)))
    assert score("arena/easy", "ans 45", "45", extra_info={"answer": "45"}) == 1.0


@pytest.mark.parametrize(
    "text",
    ['"', "\\", '\\"', "a\nb", "${x}", "ans (\\d\\d)", "1e5", "null", "{a: b}", "it's", "", "x,y", "ä"],
)
def test_hydra_reads_a_quoted_text_as_it_was(text):
    config = composed([f"trainer.experiment_name={hydra_value(text)}"])
    assert config.trainer.experiment_name == text


def test_the_plugin_is_registered_and_a_broken_one_is_said(monkeypatch):
    assert registration_fault() is None
    from verl.trainer.ppo.v1.trainer_base import TRAINER_REGISTRY

    monkeypatch.delitem(TRAINER_REGISTRY, "gear_sync")
    assert registration_fault() == "verl has no trainer gear_sync"
