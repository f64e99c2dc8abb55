"""The student's signals out of TRL's own forwards: the same credit, the same records, one pass less."""

from contextlib import suppress
from types import SimpleNamespace

import pytest
import torch
from peft import LoraConfig
from torch import nn

from engines import tiny
from gear_rl import Gear, GEARConfig, GEARTrainer, Shuffled, Uniform
from gear_rl.engines.trl import late
from gear_rl.methods import EntropyForks, Rlcsd, Rlsd, Sdpg
from gear_rl.records import read_records
from gear_rl.signals import prefix
from gear_rl.signals.passes import ModelPasses
from gear_rl.signals.score import Scorer


@pytest.fixture
def waited(monkeypatch):
    """Every batch whose credit was left to the loss."""
    made = []
    original = late.LateCredit.__init__

    def watched(self, *args):
        made.append(self)
        original(self, *args)

    monkeypatch.setattr(late.LateCredit, "__init__", watched)
    return made


def trained(folder, model, credit, cls=GEARTrainer, peft=None, rows=None, reward=tiny.vowels, **changes):
    settings = {
        "max_steps": 2,
        "learning_rate": 1e-4,
        "record_file": str(folder / "records.jsonl"),
        **changes,
    }
    trainer = cls(
        model,
        reward,
        GEARConfig(**tiny.settings(folder, **settings)),
        tiny.rows() if rows is None else rows,
        credit=credit,
        peft_config=peft,
    )
    trainer.train()
    return trainer


def both(tmp_path, monkeypatch, model, credit, **changes):
    """The same run with passes of our own, no prompt shared, and with what TRL runs anyway."""
    folders = tmp_path / "own", tmp_path / "auto"
    for folder in folders:
        folder.mkdir()
    with monkeypatch.context() as patched:
        patched.setattr(prefix, "LEAST_SAVED", 2.0)
        own = trained(folders[0], model, credit, student_pass="own", **changes)
    auto = trained(folders[1], model, credit, **changes)
    return own, auto, *(list(read_records(folder / "records.jsonl")) for folder in folders)


def agree(own, auto, first, second, tolerance=1e-4):
    """Records, metrics and weights; the files round to 5 digits."""
    assert len(first) == len(second) > 0
    for a, b in zip(first, second, strict=True):
        for name in ("step", "group", "prompt", "ids", "mask", "turn", "segment", "reward", "advantage"):
            assert getattr(a, name) == getattr(b, name), name
        assert (a.fallback, a.context, a.tools, a.truncated) == (b.fallback, b.context, b.tools, b.truncated)
        assert a.signals.keys() == b.signals.keys()
        assert a.credit == pytest.approx(b.credit, abs=tolerance)
        assert a.weight == pytest.approx(b.weight, abs=tolerance)
        for name in a.signals:
            assert a.signals[name] == pytest.approx(b.signals[name], abs=tolerance), name
    for x, y in zip(logged(own), logged(auto), strict=True):
        assert x.keys() == y.keys()
        for name in x:
            assert x[name] == pytest.approx(y[name], rel=1e-3, abs=tolerance), name
    theirs = dict(auto.model.named_parameters())
    for name, parameter in own.model.named_parameters():
        torch.testing.assert_close(parameter, theirs[name], atol=1e-4, rtol=1e-4)


def logged(trainer):
    clocks = ("runtime", "second", "step_time")
    return [
        {name: value for name, value in entry.items() if not any(word in name for word in clocks)}
        for entry in trainer.state.log_history
    ]


@pytest.mark.parametrize("shared", [True, False], ids=["shared", "alone"])
@pytest.mark.parametrize(
    "changes",
    [
        {"gradient_accumulation_steps": 4, "steps_per_generation": 2},
        {"credit_batch_size": 1, "temperature": 0.7},
        {"gradient_checkpointing": True, "loss_type": "cispo", "importance_sampling_level": "sequence"},
        {"teacher_model_kind": "ema", "teacher_update_rate": 0.5, "teacher_prompt": "splice"},
        {"teacher_skip_first_tokens": 2, "logging_steps": 2, "off_policy_mask_threshold": 0.1, "beta": 0.05},
    ],
    ids=lambda changes: "-".join(changes),
)
def test_credit_in_the_loss_is_the_credit_before_it(
    tiny_model, tmp_path, monkeypatch, waited, changes, shared
):
    if not shared:
        monkeypatch.setattr(prefix, "LEAST_SAVED", 2.0)
    found = both(tmp_path, monkeypatch, tiny_model, Gear(), **changes)
    assert len(waited) == 2 * max(1, changes.get("gradient_accumulation_steps", 0) // 2), (
        "else nothing is shown"
    )
    agree(*found)
    assert all(entry["gear/weight/max"] > 1.0 for entry in found[1].state.log_history if "loss" in entry)


@pytest.mark.parametrize(
    ("credit", "lora", "tolerance"),
    [
        (Rlsd(), False, 1e-4),
        (Gear(end_rule="line", divergence="forward"), False, 1e-4),
        (EntropyForks(scope="completion"), False, 1e-4),
        (Shuffled(seed=3), False, 1e-4),
        (Gear(), True, 1e-3),
    ],
    ids=["rlsd", "further", "forks", "shuffled", "lora"],
)
def test_with_every_kind_of_signal_and_an_adapter(
    tiny_model, tmp_path, monkeypatch, waited, credit, lora, tolerance
):
    changes = (
        {"peft": LoraConfig(r=2, target_modules=["q_proj", "v_proj"]), "learning_rate": 1e-2} if lora else {}
    )
    found = both(tmp_path, monkeypatch, tiny_model, credit, **changes)
    agree(*found, tolerance=tolerance)
    assert len(waited) == 2
    assert not any("token_id" in record.signals for record in found[2]), "a record has its ids already"


def test_rows_without_context_and_groups_without_spread(tiny_model, tmp_path, monkeypatch, waited):
    rows = [dict(row) for row in tiny.rows()]
    for row in rows[::2]:
        row |= {"privileged_context": None, "answer": ""}

    def flat(completions, prompts, **kwargs):
        odd = [int(prompt[0]["content"].split()[0]) % 3 == 0 for prompt in prompts]
        return [1.0 if same else value for same, value in zip(odd, tiny.vowels(completions), strict=True)]

    found = both(
        tmp_path, monkeypatch, tiny_model, Gear(), rows=tiny.rows().from_list(rows), reward=flat, max_steps=4
    )
    agree(*found)
    assert len(waited) == 4
    fallbacks = {record.fallback for record in found[3]}
    assert fallbacks == {None, "no_context"}
    assert any(not record.signals and record.fallback is None for record in found[3]), "not scored: no spread"


@pytest.mark.parametrize(
    "changes",
    [
        {"steps_per_generation": 4, "num_iterations": 2, "beta": 0.05},
        {"gradient_accumulation_steps": 1, "num_iterations": 2, "teacher_contrast": "shuffled"},
    ],
    ids=lambda changes: "-".join(changes),
)
def test_the_pass_of_the_old_log_probabilities_serves(tiny_model, tmp_path, monkeypatch, waited, changes):
    found = both(tmp_path, monkeypatch, tiny_model, Gear(), max_steps=3, **changes)
    agree(*found)
    assert not waited


# --- how many passes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "passes"),
    [
        ({}, 4),  # two steps of two micro-batches
        ({"student_pass": "own"}, 8),
        ({"steps_per_generation": 4}, 4),
        ({"steps_per_generation": 4, "student_pass": "own"}, 8),
        ({"reward": lambda completions, **_: [1.0] * len(completions)}, 0),  # no completion is scored
    ],
)
def test_the_teachers_pass_is_the_only_one_more(tiny_model, tmp_path, monkeypatch, changes, passes):
    calls, hidden = [], Scorer._hidden
    monkeypatch.setattr(prefix, "LEAST_SAVED", 2.0)
    monkeypatch.setattr(Scorer, "_hidden", lambda *args, **named: calls.append(1) or hidden(*args, **named))
    every = {"reward": lambda completions, **_: [float(i) for i in range(len(completions))]}
    trained(tmp_path, tiny_model, Gear(), teacher_check_steps=0, **{**every, **changes})
    assert len(calls) == passes


def test_shared_prompts_are_run_before_the_shuffle_tears_their_groups_apart(
    tiny_model, tmp_path, monkeypatch
):
    seen = []
    original = ModelPasses.teacher_pass

    def watched(self, request):
        seen.append(len(request.scored_B))
        return original(self, request)

    monkeypatch.setattr(ModelPasses, "teacher_pass", watched)
    trained(tmp_path, tiny_model, Gear(), max_steps=1)
    assert seen == [8], "the whole batch of rollouts at once"
    monkeypatch.setattr(prefix, "LEAST_SAVED", 2.0)
    trained(tmp_path, tiny_model, Gear(), max_steps=1)
    assert seen == [8, 4, 4], "a micro-batch at a time"


# --- where it must not wait ----------------------------------------------------------------------------------


class Subclass(GEARTrainer):
    """Somebody's own loss may read the advantages before TRL's does."""

    def _compute_loss(self, model, inputs):
        assert inputs["advantages"].dim() == 2, "one per token, before anything is computed"
        return super()._compute_loss(model, inputs)


@pytest.mark.parametrize(
    ("credit", "changes"),
    [
        (Gear(), {"student_pass": "own"}),
        (Gear(), {"num_iterations": 2, "gradient_accumulation_steps": 4, "steps_per_generation": 2}),
        (Gear(), {"teacher_contrast": "shuffled"}),
        (Gear(), {"cls": Subclass}),
        (EntropyForks(), {}),
        (Rlcsd(), {}),
        (Sdpg(weight=0.5), {}),
        (Uniform(), {}),
    ],
    ids=lambda value: value.name if hasattr(value, "needs") else "-".join(value),
)
def test_what_differs_in_the_loss_does_not_wait(tiny_model, tmp_path, waited, credit, changes):
    trained(tmp_path, tiny_model, credit, max_steps=1, **changes)
    assert not waited


def test_rollouts_outside_of_a_training_do_not_wait(tiny_model, tmp_path, waited):
    trainer = trained(tmp_path, tiny_model, Gear(), max_steps=1)
    assert len(waited) == 1
    trainer.model.train()
    rows = [dict(row) for row in list(tiny.rows(2)) for _ in range(4)]
    output = trainer._generate_and_score_completions(rows)
    assert output["advantages"].dim() == 2 and late.ROW not in output
    assert len(waited) == 1


def test_dropout_has_a_pass_of_its_own(tiny_model, tmp_path, waited):
    peft = LoraConfig(r=2, target_modules=["q_proj"], lora_dropout=0.5)
    for changes in ({}, {"steps_per_generation": 4}):
        trainer = trained(tmp_path, tiny_model, Gear(), peft=peft, **changes)
        assert not trainer.shares_passes
    assert not waited


def test_dropout_that_is_set_between_two_trainings_counts(tiny_model, tmp_path, waited):
    trainer = trained(tmp_path, tiny_model, Gear(), max_steps=1)
    assert len(waited) == 1
    trainer.model.model.layers[0].self_attn.attention_dropout = 0.1
    trainer.train()
    assert len(waited) == 1


@pytest.mark.parametrize(
    ("name", "value", "quiet"),
    [
        ("attention_dropout", 0.0, True),
        ("attention_dropout", 0.1, False),
        ("router_jitter_noise", 0.01, False),
        ("drop_last", True, True),
        ("width", 0.5, True),
    ],
)
def test_a_rate_that_is_a_plain_number_counts(name, value, quiet):
    module = nn.Linear(1, 1)
    setattr(module, name, value)
    assert late.is_deterministic(nn.Sequential(module)) is quiet
    assert not late.is_deterministic(nn.Sequential(module, nn.BatchNorm1d(1)))


@pytest.mark.parametrize(
    "change",
    [
        {"use_liger_kernel": True},
        {"torch_compile": True},
        {"neftune_noise_alpha": 5.0},
        {"student_pass": "own"},
        {"sharding": "FSDP"},
        {"sharding": "DEEPSPEED"},
        {"_is_vlm": True},
        {"padding_moves": True},
        {"model": nn.Dropout(0.1)},
    ],
    ids=lambda change: "-".join(f"{name}={value}" for name, value in change.items()),
)
def test_where_the_student_keeps_a_pass_of_its_own(change):
    args = {
        "student_pass": "auto",
        "use_liger_kernel": False,
        "torch_compile": False,
        "neftune_noise_alpha": None,
    }
    trainer = {"sharding": "NO", "_is_vlm": False, "padding_moves": False, "model": nn.Linear(1, 1)}

    def made(changes):
        own = {name: value for name, value in changes.items() if name in trainer}
        rest = {name: value for name, value in changes.items() if name not in own}
        return SimpleNamespace(args=SimpleNamespace(**(args | rest)), **(trainer | own))

    assert GEARTrainer.shares_passes.func(made({}))
    assert not GEARTrainer.shares_passes.func(made(change))


def test_what_was_not_captured_is_computed(tiny_model, tmp_path, monkeypatch, waited):
    """A backbone that TRL reaches some other way: the student then has a pass of its own, in the loss."""
    monkeypatch.setattr(late.StudentPass, "whole", property(lambda self: False))
    agree(*both(tmp_path, monkeypatch, tiny_model, Gear()))
    assert len(waited) == 2


def test_the_pass_of_another_model_is_not_taken(tiny_model, tmp_path):
    """With an adapter TRL's reference is the same model; only what is the old log-probabilities' counts."""
    trainer, awaited = trained(tmp_path, tiny_model, Gear(), max_steps=1), []
    trainer.student_forwards.receive = awaited.append
    ids = torch.ones(2, 5, dtype=torch.long)
    other = tiny.model(len(trainer._tokenizer))
    with suppress(Exception):  # TRL 1.16 did not patch it: it knows no fused head. 1.14 asks for none
        trainer._get_per_token_logps_and_entropies(other, ids, ids, 2)
    assert not awaited and trainer.student_forwards.receive is not None
    trainer._get_per_token_logps_and_entropies(trainer.model, ids, ids, 2)
    assert len(awaited) == 1 and awaited[0].whole and trainer.student_forwards.receive is None
