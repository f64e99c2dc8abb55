"""What a method declares for the engine: the same from every entry, unless the user sets the key."""

from typing import Any

import pytest

from engines import tiny
from gear_rl.engines.trl.config import GEARConfig, checked_arguments
from gear_rl.lab.comparison import plan_of
from gear_rl.lab.material import arena_material
from gear_rl.lab.training import cell_trainer
from gear_rl.method_builder import build_method
from gear_rl.methods import METHODS, Rlcsd, Rlsd, Uniform
from gear_rl.runs.run_config import RunConfig
from gear_rl.runs.trl_run import make_trainer
from gear_rl.traits import engine_settings_of
from support.commands import untouched

DEFAULTS = {
    "teacher_model_kind": "live",
    "teacher_update_rate": 0.05,
    "teacher_sync_steps": 10,
    "teacher_contrast": "none",
    "privileged_sources": ["environment", "row"],
    "success_reward": 1.0,
}
# From the papers and released codes that the docstrings of the methods name.
PUBLISHED: dict[str, dict[str, Any]] = {
    "gear": {"teacher_model_kind": "base"},  # ours, chosen by measurement, docs/decisions/0013
    "shuffled": {"teacher_model_kind": "base"},  # GEAR's, as it shuffles GEAR by itself
    "random_onsets": {"teacher_model_kind": "base"},
    "mixed": {"teacher_model_kind": "base"},  # GEAR's, its first method
    "rlsd": {"teacher_model_kind": "sync"},
    "serl": {"teacher_model_kind": "sync"},
    "rlcsd": {
        "teacher_model_kind": "sync",
        "teacher_contrast": "sibling",
        "privileged_sources": ["sibling"],
    },
    "sc_grpo": {"teacher_model_kind": "base", "privileged_sources": ["sibling"]},  # GEAR's, inferred
    "cast": {"teacher_model_kind": "base", "privileged_sources": ["prompt"]},
    "opsd": {"teacher_model_kind": "base"},
    "sdpo": {
        "teacher_model_kind": "ema",
        "privileged_sources": ["sibling", "feedback"],
        "success_reward": 0.5,
    },
}


def seen(args: GEARConfig) -> dict[str, Any]:
    return {name: getattr(args, name) for name in DEFAULTS}


@pytest.mark.parametrize("name", METHODS)
def test_the_methods_own_settings_are_those_of_their_sources(name):
    assert DEFAULTS | engine_settings_of(METHODS[name]()) == DEFAULTS | PUBLISHED.get(name, {})


def test_every_command_has_the_same(tmp_path):
    text, credit = "shuffled:of.name=rlsd", {"name": "shuffled", "of": {"name": "rlsd"}}
    wanted = DEFAULTS | PUBLISHED["rlsd"]
    out = {"output_dir": str(tmp_path), "max_steps": 1, "save_strategy": "no"}
    batch = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 1}
    with untouched(None):
        run = RunConfig(model="arena", dataset="arena/easy", reward="arena", credit=credit, lora=None)
        run.trainer = out | batch
        assert seen(make_trainer(run).args) == wanted, "gear train, gear demo"
        plan = plan_of([text], task="chain", tier="easy", seeds=1, steps=1, n_eval=8)
        *_, spec = plan.reported_specs()  # after the baseline and the ceiling
        assert seen(cell_trainer(spec, str(tmp_path)).args) == wanted, "gear compare"
        assert {**DEFAULTS, **spec.engine} == wanted, "the record of the cell"
        config = arena_material(tier="easy", n=1).config.resolved(build_method(credit))
        assert {name: getattr(config, name) for name in DEFAULTS} == wanted, "gear score"


@pytest.mark.parametrize(
    ("credit", "given", "wanted"),
    [
        (Uniform(), {}, {}),
        (Rlsd(), {"teacher_model_kind": "live"}, {"teacher_model_kind": "live"}),  # the general default
        (Rlsd(), {"teacher_sync_steps": 3}, {"teacher_model_kind": "sync", "teacher_sync_steps": 3}),
        (Rlcsd(), {"teacher_contrast": "none"}, PUBLISHED["rlcsd"] | {"teacher_contrast": "none"}),
    ],
)
def test_the_users_key_wins_over_the_methods_setting(credit, given, wanted):
    args = GEARConfig("out", use_cpu=True, **given)
    assert seen(checked_arguments(args, credit, None, tiny.rows(4), {})) == DEFAULTS | wanted
