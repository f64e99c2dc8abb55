"""Whose weights the teacher has, and that the student's come back."""

import pytest
import torch
from peft import LoraConfig, get_peft_model, inject_adapter_in_model
from torch import nn

from engines import tiny
from engines.distilling import speaking
from gear_rl.model.teacher import CopyTeacher, make_teacher, trained_parameters


def linear(value: float) -> nn.Linear:
    layer = nn.Linear(1, 1, bias=False)
    layer.weight.data.fill_(value)
    return layer


def lent(teacher, model) -> float:
    with teacher.weights(model):
        return model.weight.item()


@pytest.mark.parametrize(
    ("kind", "options", "seen"),
    [
        ("live", {}, [2.0, 3.0, 4.0, 5.0]),
        ("base", {}, [1.0, 1.0, 1.0, 1.0]),
        ("ema", {"update_rate": 0.5}, [1.5, 2.25, 3.125, 4.0625]),
        ("sync", {"sync_steps": 2}, [1.0, 3.0, 3.0, 5.0]),
    ],
)
def test_each_kind_follows_its_rule(kind, options, seen):
    model = linear(1.0)
    teacher = make_teacher(kind, model, **options)
    found = []
    for step in range(1, 5):
        model.weight.data.fill_(1.0 + step)
        teacher.update(model, step)
        found.append(lent(teacher, model))
        assert model.weight.item() == 1.0 + step
    assert found == seen


def test_a_saved_teacher_is_taken_up_again():
    model = linear(1.0)
    teacher = make_teacher("ema", model, update_rate=0.25)
    model.weight.data.fill_(5.0)
    teacher.update(model, 1)
    state = {name: value.clone() for name, value in teacher.state_dict().items()}
    resumed = make_teacher("ema", model, update_rate=0.25)
    assert lent(resumed, model) == 5.0
    resumed.load_state_dict(state)
    assert lent(resumed, model) == 2.0


def test_an_average_of_bfloat16_weights_moves():
    """A share of 0.05 of the last bit rounds to nothing in bfloat16."""
    model = linear(1.0).to(torch.bfloat16)
    teacher = make_teacher("ema", model, update_rate=0.05)
    model.weight.data.fill_(1.03125)
    for step in range(200):
        teacher.update(model, step)
    assert lent(teacher, model) == 1.03125
    assert model.weight.dtype == torch.bfloat16


def test_the_students_weights_come_back_after_an_error():
    model = linear(7.0)
    teacher = CopyTeacher(linear(1.0))
    with pytest.raises(RuntimeError), teacher.weights(model):
        assert model.weight.item() == 1.0
        raise RuntimeError
    assert model.weight.item() == 7.0
    assert lent(teacher, model) == 1.0


def test_under_autocast_the_teacher_has_its_own_weights():
    """Autocast keeps the weights that it has cast until it is left."""
    model, x = linear(1.0), torch.ones(1, 1)
    teacher = CopyTeacher(model)
    model.weight.data.fill_(2.0)
    with torch.autocast("cpu", torch.bfloat16):
        seen = [model(x).item()]
        with teacher.weights(model):
            seen.append(model(x).item())
        seen.append(model(x).item())
    assert seen == [2.0, 1.0, 2.0]


def test_a_copy_keeps_to_what_was_trained_when_it_was_made():
    model = nn.Sequential(linear(1.0), linear(1.0).requires_grad_(False))
    teacher = make_teacher("base", model)
    for layer in model:
        layer.weight.data.fill_(2.0)
        layer.requires_grad_(not layer.weight.requires_grad)
    with teacher.weights(torch.compile(model)):
        assert [layer.weight.item() for layer in model] == [1.0, 2.0]
    follower = make_teacher("sync", model, sync_steps=1)
    model[1].weight.data.fill_(3.0)
    follower.update(model.requires_grad_(False), 1)
    assert follower.state_dict() == {"1.weight": 3.0}


def test_what_was_frozen_in_an_adapter_stays_frozen():
    model = get_peft_model(tiny.model(32), LoraConfig(r=2, target_modules=["q_proj"]))
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("lora_B" in name)
    trained = [*trained_parameters(model)]
    with make_teacher("base", model).weights(model):
        pass
    assert [*trained_parameters(model)] == trained


def test_an_adapter_inside_a_plain_model_is_copied():
    model = inject_adapter_in_model(LoraConfig(r=2, target_modules=["q_proj"]), tiny.model(33))
    assert make_teacher("base", model).state_dict()


def test_under_peft_base_is_the_model_without_its_adapter_and_the_others_copy_it():
    base = tiny.model(31).eval()
    ids = torch.tensor([[3, 4, 5]])
    plain = base(input_ids=ids).logits
    model = get_peft_model(base, LoraConfig(r=2, target_modules=["q_proj"])).eval()
    teacher = make_teacher("base", model)
    speaking(model)
    assert not torch.allclose(model(input_ids=ids).logits, plain)
    with teacher.weights(model):
        assert torch.equal(model(input_ids=ids).logits, plain)
    assert teacher.state_dict() == {}
    for kind in ("ema", "base"):  # an adapter that has changed the model already is no beginning as nothing
        copied = make_teacher(kind, model).state_dict()
        assert copied and all("lora_" in name for name in copied), "of the adapter alone"
