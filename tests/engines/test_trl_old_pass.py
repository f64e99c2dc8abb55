"""The student's states out of TRL's pass for its old log-probabilities: the same credit, one pass less."""

import pytest
import torch
from peft import LoraConfig
from torch import nn

from engines import tiny
from engines.distilling import LORA
from engines.running import trained
from gear_rl import Gear
from gear_rl.engines.trl import old_pass
from gear_rl.methods import EntropyForks, Rlcsd, Rlsd
from gear_rl.model import prefix
from gear_rl.records import read_records
from gear_rl.signals.passes import ModelPasses

OLD = {"steps_per_generation": 4, "learning_rate": 1e-4, "record_file": "records.jsonl"}
"""Two steps on each batch of rollouts: TRL makes their old log-probabilities before the first."""


@pytest.fixture
def shared(monkeypatch):
    """For every credit step, whether the student's pass was TRL's."""
    found, run = [], ModelPasses.run
    monkeypatch.setattr(
        ModelPasses,
        "run",
        lambda *given, **states: found.append(any(states.values())) or run(*given, **states),
    )
    return found


def both(tmp_path, monkeypatch, model, credit, **changes):
    """The same run with passes of our own, no prompt shared, and with TRL's."""
    changes = OLD | changes
    with monkeypatch.context() as patched:
        patched.setattr(prefix, "LEAST_SAVED", 2.0)
        patched.setattr("gear_rl.engines.trl.trainer.shares_old_pass", lambda trainer: False)
        own = trained(tmp_path / "own", model, credit, **changes)
    kept = trained(tmp_path / "kept", model, credit, **changes)
    return own, kept, *(list(read_records(tmp_path / name / "records.jsonl")) for name in ("own", "kept"))


def agree(own, kept, first, second, tolerance=1e-4):
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
    for x, y in zip(logged(own), logged(kept), strict=True):
        assert x.keys() == y.keys()
        for name in x:
            assert x[name] == pytest.approx(y[name], rel=1e-3, abs=tolerance), name
    theirs = dict(kept.model.named_parameters())
    for name, parameter in own.model.named_parameters():
        torch.testing.assert_close(parameter, theirs[name], atol=1e-4, rtol=1e-4)


def logged(trainer):
    clocks = ("runtime", "second", "step_time")
    return [
        {name: value for name, value in entry.items() if not any(word in name for word in clocks)}
        for entry in trainer.state.log_history
    ]


FEW_TOKENS = {"teacher_skip_first_tokens": 2, "off_policy_mask_threshold": 0.1, "beta": 0.05}
EMA = {"teacher_model_kind": "ema", "teacher_update_rate": 0.5, "teacher_prompt": "splice"}


@pytest.mark.parametrize(
    ("credit", "changes"),
    [
        (Gear(), {"num_iterations": 2, "beta": 0.05, "temperature": 0.7}),
        (Gear(), {"gradient_checkpointing": True, "loss_type": "cispo"}),
        (Gear(), EMA),
        (Gear(), FEW_TOKENS),
        (Gear(), {"teacher_contrast": "shuffled"}),
        # The reference is the same model with the adapter off: its pass must not be taken for the student's.
        (Gear(), {"peft": LORA, "learning_rate": 1e-2, "beta": 0.05}),
        (Rlsd(), {}),
        (Rlcsd(), {}),
        (EntropyForks(), {}),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else str(getattr(value, "name", value)),
)
def test_credit_out_of_trls_pass_is_that_of_a_pass_of_our_own(
    tiny_model, tmp_path, monkeypatch, shared, credit, changes
):
    found = both(tmp_path, monkeypatch, tiny_model, credit, **changes)
    agree(*found, tolerance=1e-3 if "peft" in changes else 1e-4)
    assert shared[len(shared) // 2 :] == [True] * (len(shared) // 2), "the second run"
    assert any(len({*record.weight}) > 1 for record in found[3]), "else nothing is shown"


def test_rows_without_context_and_groups_without_spread(tiny_model, tmp_path, monkeypatch):
    rows = list(tiny.rows())
    rows[1::2] = [row | {"privileged_context": None, "answer": ""} for row in rows[1::2]]

    def flat(completions, prompts, **kwargs):
        odd = [int(prompt[0]["content"].split()[0]) % 3 == 0 for prompt in prompts]
        return [1.0 if same else value for same, value in zip(odd, tiny.vowels(completions), strict=True)]

    changes = {"rows": tiny.rows().from_list(rows), "reward": flat, "max_steps": 8}
    found = both(tmp_path, monkeypatch, tiny_model, Gear(), **changes)
    agree(*found)
    assert {record.fallback for record in found[3]} == {None, "no_context"}
    assert any(not record.signals and record.fallback is None for record in found[3]), "not scored: no spread"


# --- where the student has a pass of its own -----------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [{"steps_per_generation": 2}, {"peft": LoraConfig(r=2, target_modules=["q_proj"], lora_dropout=0.5)}],
    ids=["TRL makes none", "dropout"],
)
def test_the_student_has_a_pass_of_its_own(tiny_model, tmp_path, shared, changes):
    trained(tmp_path, tiny_model, Gear(), max_steps=1, **OLD | changes)
    assert shared and not any(shared)


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
    assert old_pass.is_deterministic(nn.Sequential(module)) is quiet
    assert not old_pass.is_deterministic(nn.Sequential(module, nn.BatchNorm1d(1)))


def test_what_was_not_captured_is_computed(tiny_model, tmp_path, monkeypatch, shared):
    """A backbone that TRL reaches some other way."""
    monkeypatch.setattr(old_pass.OldPass, "_take", lambda *_: None)
    agree(*both(tmp_path, monkeypatch, tiny_model, Gear()))
    assert shared and not any(shared)
