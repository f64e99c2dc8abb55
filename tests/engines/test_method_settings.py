"""What a method's paper sets in the engine: the same from every entry, unless the user sets the key."""

import logging
from typing import Any

import pytest

from engines import tiny
from gear_rl.engines.trl.config import GEARConfig, checked_arguments
from gear_rl.lab.compare import plan_of
from gear_rl.lab.score import arena_material
from gear_rl.lab.training import cell_trainer
from gear_rl.methods import METHODS, Gear, Opsd, Rlcsd, Rlsd, Sdpo, Shuffled, Uniform
from gear_rl.runs.config import RunConfig
from gear_rl.runs.trainer import make_trainer
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
    "gear": {"teacher_model_kind": "base"},  # not published: chosen by measurement, docs/decisions/0013
    "shuffled": {"teacher_model_kind": "base"},  # GEAR's, as it shuffles GEAR by itself
    "random_onsets": {"teacher_model_kind": "base"},
    "rlsd": {"teacher_model_kind": "sync"},
    "serl": {"teacher_model_kind": "sync"},
    "rlcsd": {
        "teacher_model_kind": "sync",
        "teacher_contrast": "sibling",
        "privileged_sources": ["sibling"],
    },
    "opsd": {"teacher_model_kind": "base"},
    "sdpo": {
        "teacher_model_kind": "ema",
        "privileged_sources": ["sibling", "feedback"],
        "success_reward": 0.5,
    },
}


def seen(args: GEARConfig) -> dict[str, Any]:
    return {name: getattr(args, name) for name in DEFAULTS}


def resolved(credit, **changes) -> GEARConfig:
    """The settings of a trainer."""
    return checked_arguments(GEARConfig("out", use_cpu=True, **changes), credit, None, tiny.rows(4), {})


@pytest.mark.parametrize("name", METHODS)
def test_the_methods_own_settings_are_the_published_ones(name):
    assert DEFAULTS | engine_settings_of(METHODS[name]()) == DEFAULTS | PUBLISHED.get(name, {})


@pytest.mark.parametrize(
    ("text", "credit", "settings"),
    [
        ("rlcsd", {"name": "rlcsd"}, PUBLISHED["rlcsd"]),
        ("shuffled:of={name: rlsd}", {"name": "shuffled", "of": {"name": "rlsd"}}, PUBLISHED["rlsd"]),
    ],
)
def test_every_command_has_the_same(text, credit, settings, tmp_path):
    wanted = DEFAULTS | settings
    out = {"output_dir": str(tmp_path), "max_steps": 1, "save_strategy": "no"}
    batch = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 1}
    with untouched(None):
        run = RunConfig(model="arena", dataset="arena/easy", reward="arena", credit=credit, lora=None)
        run.trainer = out | batch
        assert seen(make_trainer(run).args) == wanted, "gear train, gear demo"
        plan = plan_of([text], task="chain", tier="easy", seeds=1, steps=1, n_eval=8)
        *_, spec = plan.reported()  # after the baseline and the ceiling
        assert seen(cell_trainer(spec, str(tmp_path)).args) == wanted, "gear compare"
        assert {**DEFAULTS, **spec.engine} == wanted, "the record of the cell"
        material = arena_material(tier="easy", n=1)
        assert seen(make_trainer(material.config(credit, str(tmp_path))).args) == wanted, "gear score"


@pytest.mark.parametrize(
    ("credit", "given", "wanted"),
    [
        (Gear(), {}, PUBLISHED["gear"]),
        (Uniform(), {}, {}),
        (Rlsd(), {"teacher_model_kind": "live"}, {"teacher_model_kind": "live"}),  # the general default
        (Rlsd(), {"teacher_sync_steps": 3}, {"teacher_model_kind": "sync", "teacher_sync_steps": 3}),
        (
            Rlcsd(),
            {"teacher_contrast": "none", "privileged_sources": ["row"]},
            {"teacher_model_kind": "sync", "teacher_contrast": "none", "privileged_sources": ["row"]},
        ),
        (
            Sdpo(),
            {"success_reward": 1.0, "teacher_update_rate": 0.5},
            PUBLISHED["sdpo"] | {"success_reward": 1.0, "teacher_update_rate": 0.5},
        ),
    ],
)
def test_the_users_key_wins_over_the_methods_setting(credit, given, wanted):
    assert seen(resolved(credit, **given)) == DEFAULTS | wanted


def test_one_args_object_serves_two_methods():
    args = GEARConfig("out", use_cpu=True)
    found = [checked_arguments(args, m, None, None, {}) for m in (Rlcsd(), Gear(), Shuffled(of=Opsd()))]
    assert [own.teacher_model_kind for own in found] == ["sync", "base", "base"]
    assert all(getattr(args, name) is None for name in DEFAULTS), "the user's object stays as it was"
    found[0].privileged_sources.append("row")
    assert Rlcsd.engine_settings["privileged_sources"] == ["sibling"], "and so does the class"


SET = "rlsd sets teacher_model_kind=sync, teacher_sync_steps=10 (the default of this method)"


@pytest.mark.parametrize(
    ("credit", "given", "logged"),
    [
        (Rlsd(), {}, [SET]),
        (Rlsd(), {"teacher_sync_steps": 10}, [SET.replace(", teacher_sync_steps=10", "")]),
        (Rlsd(), {"teacher_sync_steps": 10, "teacher_model_kind": "live"}, []),
        (Gear(), {"teacher_model_kind": "live"}, []),
        (Uniform(), {}, []),
    ],
)
def test_what_was_applied_is_logged_once(caplog, credit, given, logged):
    with caplog.at_level(logging.INFO, logger="gear_rl"):
        resolved(credit, **given)
    assert [text for text in caplog.messages if "the default of this method" in text] == logged


@pytest.mark.parametrize("sources", [None, ["sibling", "row"]])
def test_a_column_that_the_methods_sources_do_not_read_is_reported(caplog, sources):
    resolved(Sdpo(), privileged_column="answer", privileged_sources=sources)
    found = [text for text in caplog.messages if "'answer' is not read, since privileged_sources is" in text]
    assert len(found) == (sources is None)
