"""What a method's paper sets in the engine: the same from every entry, unless the user sets the key."""

import logging
from typing import Any

import pytest

from engines import tiny
from gear_rl.engines.trl import GEARConfig, GEARTrainer
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
LIVE = (
    "uniform", "distilled_rl", "entropy_forks", "fixed_spans", "oar_p", "oar_g", "grail", "shear",
    "gigpo", "mt_grpo", "igpo", "crpo", "sdpg",
)  # fmt: skip
"""Methods that take the general defaults."""


def seen(trainer: GEARTrainer) -> dict[str, Any]:
    return {name: getattr(trainer.args, name) for name in DEFAULTS}


def trainer_of(folder, model, credit, **changes) -> GEARTrainer:
    args = GEARConfig(**tiny.settings(folder, **changes))
    return GEARTrainer(model, tiny.vowels, args, tiny.rows(4), credit=credit)


@pytest.mark.parametrize("name", [*PUBLISHED, *LIVE])
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
        assert seen(make_trainer(run)) == wanted, "gear train, gear demo"
        plan = plan_of([text], task="chain", tier="easy", seeds=1, steps=1, n_eval=8)
        *_, spec = plan.reported()  # after the baseline and the ceiling
        assert seen(cell_trainer(spec, str(tmp_path))) == wanted, "gear compare"
        assert {**DEFAULTS, **spec.engine} == wanted, "the record of the cell"
        material = arena_material(tier="easy", n=1)
        assert seen(make_trainer(material.config(credit, str(tmp_path)))) == wanted, "gear score"


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
def test_a_trainer_has_the_methods_settings_but_the_users_key_wins(
    credit, given, wanted, tiny_model, tmp_path
):
    assert seen(trainer_of(tmp_path, tiny_model, credit, **given)) == DEFAULTS | wanted


def test_one_args_object_serves_two_methods(tiny_model, tmp_path):
    args = GEARConfig(**tiny.settings(tmp_path))
    trainers = [
        GEARTrainer(tiny_model, tiny.vowels, args, tiny.rows(4), credit=credit)
        for credit in (Rlcsd(), Gear(), Shuffled(of=Opsd()))
    ]
    kinds = [trainer.args.teacher_model_kind for trainer in trainers]
    assert kinds == ["sync", "base", "base"]
    assert all(getattr(args, name) is None for name in DEFAULTS), "the user's object stays as it was"
    trainers[0].args.privileged_sources.append("row")
    assert Rlcsd.engine_settings["privileged_sources"] == ["sibling"], "and so does the class"


def test_what_was_applied_is_logged_once(tiny_model, tmp_path, caplog):
    def lines(credit, **changes):
        caplog.clear()
        with caplog.at_level(logging.INFO, logger="gear_rl"):
            trainer_of(tmp_path, tiny_model, credit, **changes)
        return [text for text in caplog.messages if "the default of this method" in text]

    said = "rlsd sets teacher_model_kind=sync, teacher_sync_steps=10 (the default of this method)"
    assert lines(Rlsd()) == [said]
    assert lines(Rlsd(), teacher_sync_steps=10) == [said.replace(", teacher_sync_steps=10", "")]
    assert lines(Rlsd(), teacher_sync_steps=10, teacher_model_kind="live") == []
    assert lines(Gear()) == ["gear sets teacher_model_kind=base (the default of this method)"]
    assert lines(Gear(), teacher_model_kind="live") == lines(Uniform()) == []


def test_a_column_that_the_methods_sources_do_not_read_is_reported(tiny_model, tmp_path, caplog):
    with caplog.at_level(logging.WARNING, logger="gear_rl"):
        trainer_of(tmp_path, tiny_model, Sdpo(), privileged_column="answer")
        assert "privileged_column: 'answer' is not read, since privileged_sources is sibling" in caplog.text
        caplog.clear()
        trainer_of(
            tmp_path, tiny_model, Sdpo(), privileged_column="answer", privileged_sources=["sibling", "row"]
        )
        assert "privileged_column" not in caplog.text
