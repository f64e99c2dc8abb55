"""The student's signals out of TRL's own forwards: the same credit, the same records, one pass less."""

import pytest
import torch
from peft import LoraConfig
from torch import nn

from engines import tiny
from engines.distilling import LORA
from engines.running import trained
from gear_rl import Gear, GEARTrainer
from gear_rl.engines.trl import late
from gear_rl.methods import EntropyForks, Rlcsd, Rlsd, Sdpg
from gear_rl.records import read_records
from gear_rl.signals import prefix


@pytest.fixture
def waited(monkeypatch):
    """Every batch whose credit was left to the loss."""
    made, own = [], late.LateCredit.__init__
    monkeypatch.setattr(late.LateCredit, "__init__", lambda *given: made.append(given) or own(*given))
    return made


def both(tmp_path, monkeypatch, model, credit, **changes):
    """The same run with passes of our own, no prompt shared, and with what TRL runs anyway."""
    changes = {"learning_rate": 1e-4, "record_file": "records.jsonl", **changes}
    with monkeypatch.context() as patched:
        patched.setattr(prefix, "LEAST_SAVED", 2.0)
        own = trained(tmp_path / "own", model, credit, student_pass="own", **changes)
    auto = trained(tmp_path / "auto", model, credit, **changes)
    return own, auto, *(list(read_records(tmp_path / name / "records.jsonl")) for name in ("own", "auto"))


def agree(own, auto, first, second, tolerance=1e-4):
    """Records, metrics and weights; the files round to 5 digits."""
    assert len(first) == len(second) > 0
    names = ("step", "group", "prompt", "ids", "mask", "turn", "segment", "reward", "advantage")
    names += ("fallback", "context", "tools", "truncated")
    for a, b in zip(first, second, strict=True):
        for name in names:
            assert getattr(a, name) == getattr(b, name), name
        assert a.signals.keys() == b.signals.keys()
        one, other = ({"credit": r.credit, "weight": r.weight, **r.signals} for r in (a, b))
        for name in one:
            assert one[name] == pytest.approx(other[name], abs=tolerance), name
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


SEQUENCE = {"gradient_checkpointing": True, "loss_type": "cispo", "importance_sampling_level": "sequence"}
FEW_TOKENS = {"teacher_skip_first_tokens": 2, "off_policy_mask_threshold": 0.1, "beta": 0.05}
EMA = {"teacher_model_kind": "ema", "teacher_update_rate": 0.5, "teacher_prompt": "splice"}


@pytest.mark.parametrize(
    ("credit", "waits", "changes"),
    [
        (Gear(), 4, {"gradient_accumulation_steps": 4, "steps_per_generation": 2, "temperature": 0.7}),
        (Gear(), 2, SEQUENCE),
        (Gear(), 2, EMA),
        (Gear(), 2, FEW_TOKENS),
        (Gear(), 2, {"peft": LORA, "learning_rate": 1e-2, "beta": 0.05}),
        (Rlsd(), 2, {}),
        (EntropyForks(scope="completion"), 2, {}),
        # The pass in which TRL computes the old log-probabilities serves before the loss.
        (Gear(), 0, {"steps_per_generation": 4, "num_iterations": 2, "beta": 0.05}),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else str(getattr(value, "name", value)),
)
def test_credit_out_of_trls_forwards_is_that_of_a_pass_before(
    tiny_model, tmp_path, monkeypatch, waited, credit, waits, changes
):
    found = both(tmp_path, monkeypatch, tiny_model, credit, **changes)
    agree(*found, tolerance=1e-3 if "peft" in changes else 1e-4)
    assert len(waited) == waits
    assert any(len({*record.weight}) > 1 for record in found[3]), "else nothing is shown"
    assert not any("token_id" in record.signals for record in found[2]), "a record has its ids already"


def test_rows_without_context_and_groups_without_spread(tiny_model, tmp_path, monkeypatch, waited):
    rows = list(tiny.rows())
    rows[1::2] = [row | {"privileged_context": None, "answer": ""} for row in rows[1::2]]

    def flat(completions, prompts, **kwargs):
        odd = [int(prompt[0]["content"].split()[0]) % 3 == 0 for prompt in prompts]
        return [1.0 if same else value for same, value in zip(odd, tiny.vowels(completions), strict=True)]

    changes = {"rows": tiny.rows().from_list(rows), "reward": flat, "max_steps": 4}
    found = both(tmp_path, monkeypatch, tiny_model, Gear(), **changes)
    agree(*found)
    assert len(waited) == 4
    assert {record.fallback for record in found[3]} == {None, "no_context"}
    assert any(not record.signals and record.fallback is None for record in found[3]), "not scored: no spread"


# --- where it must not wait ----------------------------------------------------------------------------------


class Subclass(GEARTrainer):
    """Somebody's own loss may read the advantages before TRL's does."""

    def _compute_loss(self, model, inputs):
        assert inputs["advantages"].dim() == 2, "one per token, before anything is computed"
        return super()._compute_loss(model, inputs)


@pytest.mark.parametrize(
    ("credit", "changes"),
    [
        (Gear(), {"num_iterations": 2, "gradient_accumulation_steps": 4, "steps_per_generation": 2}),
        (Gear(), {"teacher_contrast": "shuffled"}),
        (Gear(), {"cls": Subclass}),
        (EntropyForks(), {}),
        (Rlcsd(), {}),
        (Sdpg(weight=0.5), {}),
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
    trainer = trained(tmp_path, tiny_model, Gear(), peft=peft)
    assert not waited and not trainer.shares_passes


@pytest.mark.parametrize(
    ("name", "value", "quiet"),
    [
        ("attention_dropout", 0.0, True),
        ("attention_dropout", 0.1, False),
        ("drop_last", True, True),
        ("width", 0.5, True),
    ],
)
def test_a_rate_that_is_a_plain_number_counts(name, value, quiet):
    module = nn.Linear(1, 1)
    setattr(module, name, value)
    assert late.is_deterministic(nn.Sequential(module)) is quiet
    assert not late.is_deterministic(nn.Sequential(module, nn.BatchNorm1d(1)))


def test_what_was_not_captured_is_computed(tiny_model, tmp_path, monkeypatch, waited):
    """A backbone that TRL reaches some other way: the student then has a pass of its own, in the loss."""
    monkeypatch.setattr(late.StudentPass, "whole", property(lambda self: False))
    agree(*both(tmp_path, monkeypatch, tiny_model, Gear()))
    assert len(waited) == 2
