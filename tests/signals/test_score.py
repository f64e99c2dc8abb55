"""Signals against an oracle that knows no batch, no padding, no hook and no tile: one token at a time."""

import contextlib

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from trl.trainer.utils import add_fused_lm_head

from engines import tiny
from gear_rl.signals.batch import Completions, Prompts, TeacherPrompt, left_padded
from gear_rl.signals.folds import FOLD_SIGNALS
from gear_rl.signals.forwards import backbone_of, head_of, hidden_states
from gear_rl.signals.score import KeptStates
from gear_rl.signals.signal import needs_student, needs_teacher
from gear_rl.signals.teacher import CopyTeacher
from support.scoring import score, teacher_states

PAD = 0
PROMPTS = [[5, 6, 7], [8, 9, 10, 11, 12], [13]]
HINTED = [[21, 22, *PROMPTS[0]], [23, *PROMPTS[1]], [24, 25, 26, *PROMPTS[2]]]
COMPLETIONS = [[30, 31, 32, 33], [40, 41], [50, 51, 52, 53, 54, 55, 56]]
MASKS = [[1, 1, 0, 1], [1, 1], [0, 1, 1, 0, 0, 1, 1]]
EVERY = ("student_logprob", "teacher_logprob", "student_entropy", "divergence")
FURTHER = ("forward_divergence", "js_divergence", "teacher_entropy", "student_varentropy")


def right_padded(rows: list[list[int]], width: int = 9) -> torch.Tensor:
    return torch.tensor([row + [PAD] * (width - len(row)) for row in rows])


def batch() -> tuple[Completions, Prompts, Prompts]:
    attention = right_padded([[1] * len(row) for row in COMPLETIONS])
    completions = Completions(
        ids=right_padded(COMPLETIONS), attention=attention, mask=right_padded(MASKS).bool() & attention.bool()
    )
    student, teacher = (
        left_padded([TeacherPrompt(tuple(ids)) for ids in prompts], PAD) for prompts in (PROMPTS, HINTED)
    )
    return completions, student, teacher


@torch.no_grad()
def by_hand(
    model: nn.Module, temperature: float = 1.0, teacher: nn.Module | None = None
) -> dict[str, torch.Tensor]:
    """Each token scored by a forward over exactly the tokens before it."""
    found = {name: torch.zeros(len(COMPLETIONS), 9) for name in (*EVERY, *FURTHER)}
    for b, completion in enumerate(COMPLETIONS):
        for t, token in enumerate(completion):
            if not MASKS[b][t]:
                continue
            p, q = (
                (
                    net(input_ids=torch.tensor([prompt + completion[:t]])).logits[0, -1] / temperature
                ).log_softmax(-1)
                for net, prompt in ((model, PROMPTS[b]), (teacher or model, HINTED[b]))
            )
            found["student_logprob"][b, t] = p[token]
            found["teacher_logprob"][b, t] = q[token]
            found["student_entropy"][b, t] = -(p.exp() * p).sum()
            found["divergence"][b, t] = (p.exp() * (p - q)).sum()
            middle = ((p.exp() + q.exp()) / 2).log()
            found["forward_divergence"][b, t] = (q.exp() * (q - p)).sum()
            found["js_divergence"][b, t] = (p.exp() * (p - middle) + q.exp() * (q - middle)).sum() / 2
            found["teacher_entropy"][b, t] = -(q.exp() * q).sum()
            found["student_varentropy"][b, t] = (
                p.exp() * (p + found["student_entropy"][b, t]).square()
            ).sum()
    return found


@pytest.fixture
def model() -> nn.Module:
    net = tiny.model(97, hidden_size=40)
    with torch.no_grad():
        for parameter in net.parameters():
            if parameter.dim() > 1:
                parameter.mul_(12.0)
    return net.eval()


def agree(found, expected, names=EVERY, tolerance=2e-5):
    for name in names:
        torch.testing.assert_close(found.get(name), expected[name], atol=tolerance, rtol=1e-4, msg=name)


@pytest.mark.parametrize("batch_size", [1, 2, 8])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_agrees_with_one_token_at_a_time(model, batch_size, temperature):
    completions, student, teacher = batch()
    expected = by_hand(model, temperature)
    assert expected["divergence"].max() > 0.05, "the oracle must have something to see"
    found = score(
        model, completions, student, teacher, needs=EVERY, temperature=temperature, batch_size=batch_size
    )
    agree(found, expected)
    assert found.turn_id[0, :4].tolist() == [0, 0, -1, 1]


@pytest.mark.parametrize("batch_size", [1, 2, 8])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_the_other_divergences_agree_too_and_leave_the_rest_bit_for_bit(model, batch_size, temperature):
    completions, student, teacher = batch()
    expected = by_hand(model, temperature)
    assert min(expected[name].max() for name in FURTHER) > 0.01, "the oracle must have something to see"
    settings = {"temperature": temperature, "batch_size": batch_size}
    found = score(model, completions, student, teacher, needs=(*EVERY, *FURTHER), **settings)
    agree(found, expected, (*EVERY, *FURTHER), 5e-5)
    plain = score(model, completions, student, teacher, needs=EVERY, **settings)
    assert all(torch.equal(found.get(name), plain.get(name)) for name in EVERY)
    for name in FURTHER:
        assert (found.get(name)[~completions.mask] == 0).all()
        alone = score(model, completions, student, teacher, needs=[name], **settings)
        assert torch.equal(alone.get(name), found.get(name))


def test_which_signals_cost_which_pass():
    cost = {name: (needs_student([name]), needs_teacher([name])) for name in (*EVERY, *FURTHER)}
    assert cost == {
        "student_logprob": (True, False),
        "student_entropy": (True, False),
        "student_varentropy": (True, False),
        "teacher_logprob": (False, True),
        "teacher_entropy": (False, True),
        "divergence": (True, True),
        "forward_divergence": (True, True),
        "js_divergence": (True, True),
    }
    assert set(cost) == {signal.name for signal in FOLD_SIGNALS}


@pytest.mark.parametrize(
    ("needs", "statistics", "taught"),  # what is asked of `token_statistics`, and whether with a teacher
    [
        (("js_divergence",), 0, None),
        (("student_varentropy", "teacher_entropy"), 0, None),
        (("student_entropy", "forward_divergence"), 1, False),
        (("teacher_logprob", "teacher_entropy"), 1, False),  # the teacher sits in the student's seat
        (("teacher_logprob", "js_divergence"), 1, True),
        (("divergence", "js_divergence"), 1, True),
    ],
)
def test_the_pass_for_the_others_is_not_made_for_these(model, needs, statistics, taught, monkeypatch):
    from gear_rl.signals import folds as module

    calls, original = [], module.token_statistics

    def counted(student, token, head, teacher=None, teacher_head=None):
        calls.append(teacher is not None)
        return original(student, token, head, teacher, teacher_head)

    monkeypatch.setattr(module, "token_statistics", counted)
    completions, student, teacher = batch()
    agree(score(model, completions, student, teacher, needs=needs), by_hand(model), needs, 5e-5)
    assert calls == [taught] * statistics


@pytest.mark.parametrize(
    ("needs", "forwards"),
    [
        ((), 0),
        (("student_entropy",), 1),
        (("student_logprob", "student_entropy"), 1),
        (("teacher_logprob",), 1),
        (("divergence",), 2),
        (EVERY, 2),
        (("student_varentropy",), 1),
        (("teacher_entropy",), 1),
        (("teacher_logprob", "teacher_entropy"), 1),
        (("student_varentropy", "teacher_entropy"), 2),
        (("forward_divergence",), 2),
        (("js_divergence",), 2),
        ((*EVERY, *FURTHER), 2),
    ],
)
def test_computes_what_is_needed_and_nothing_else(model, needs, forwards):
    completions, student, teacher = batch()
    calls = []
    handle = model.register_forward_hook(lambda *_: calls.append(1))
    found = score(model, completions, student, teacher, needs=needs, batch_size=8)
    handle.remove()
    assert len(calls) == forwards
    assert [*found.values] == [*needs]
    agree(found, by_hand(model), needs, 5e-5)


def test_rows_that_are_not_wanted_hold_zero_and_cost_nothing(model):
    completions, student, teacher = batch()
    rows = torch.tensor([False, True, False])
    calls = []
    handle = model.register_forward_hook(lambda *_: calls.append(1))
    found = score(model, completions, student, teacher, needs=EVERY, row_B=rows, batch_size=1)
    handle.remove()
    assert len(calls) == 2
    expected = {name: value * rows[:, None] for name, value in by_hand(model).items()}
    agree(found, expected)


def test_surplus_batches_keep_sharded_processes_in_step_and_change_nothing(model):
    completions, student, teacher = batch()
    calls = []
    handle = model.register_forward_hook(lambda *_: calls.append(1))
    found = score(model, completions, student, teacher, needs=EVERY, batch_size=3, num_batches=4)
    nothing = score(
        model,
        completions,
        student,
        teacher,
        needs=EVERY,
        row_B=torch.zeros(3, dtype=torch.bool),
        num_batches=2,
    )
    handle.remove()
    assert len(calls) == 2 * 4 + 2 * 2
    agree(found, by_hand(model))
    assert all((nothing.get(name) == 0).all() for name in EVERY)


@pytest.mark.parametrize("wrap", ["fused", "peft", "ddp"])
def test_holds_under_what_wraps_a_model(model, wrap, tmp_path):
    completions, student, teacher = batch()
    expected = by_hand(model)
    wrapped: nn.Module = model
    if wrap == "fused":
        add_fused_lm_head(model, outputs=("log_probs", "entropy"))
    elif wrap == "peft":
        wrapped = get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj", "v_proj"]))
        with torch.no_grad():
            for name, parameter in wrapped.named_parameters():
                if "lora_B" in name:
                    parameter.normal_(std=0.5)
        expected = by_hand(wrapped.eval())
    with process_group(tmp_path) if wrap == "ddp" else contextlib.nullcontext():
        if wrap == "ddp":
            wrapped = nn.parallel.DistributedDataParallel(model)
        agree(score(wrapped, completions, student, teacher, needs=EVERY), expected)


def test_holds_under_fsdp(model, tmp_path):
    """PyTorch's own FSDP 2 on one CPU process: parameters are DTensors, and only `forward` gathers them."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    completions, student, teacher = batch()
    expected = by_hand(model)
    with process_group(tmp_path):
        mesh = init_device_mesh("cpu", (1,))
        for layer in model.model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        agree(score(model, completions, student, teacher, needs=EVERY), expected)


@contextlib.contextmanager
def process_group(folder):
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()


def test_logit_scale_and_softcap_of_the_config_are_honoured(model):
    hidden = torch.randn(3, 40)
    raw = hidden @ model.lm_head.weight.T
    assert torch.allclose(head_of(model, 1.0).logits(hidden), raw, atol=1e-5)
    model.config.final_logit_softcapping = 3.0
    assert torch.allclose(head_of(model, 1.0).logits(hidden), torch.tanh(raw / 3) * 3, atol=1e-5)
    model.config.logits_scaling = 4.0  # Granite divides
    capped = torch.tanh(raw / 4 / 3) * 3
    assert torch.allclose(head_of(model, 0.5).logits(hidden), capped / 0.5, atol=1e-5)
    model.config.logit_scale = 2.0  # Cohere multiplies, and comes first
    assert torch.allclose(head_of(model, 1.0).logits(hidden), torch.tanh(raw * 2 / 3) * 3, atol=1e-5)


def test_a_head_under_an_adapter_is_refused(model):
    """PEFT's layer shows its base weight, so the signals would be wrong without a word."""
    wrapped = get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj", "lm_head"]))
    completions, student, teacher = batch()
    with pytest.raises(ValueError, match="the head is wrapped by an adapter"):
        score(wrapped, completions, student, teacher, needs=EVERY)


def test_a_teacher_with_other_weights_uses_its_own_head(model):
    """With tied embeddings a full fine-tune moves the head too."""
    teacher = CopyTeacher(model)
    frozen = tiny.model(97, hidden_size=40)
    frozen.load_state_dict(model.state_dict())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    before = {name: p.clone() for name, p in model.named_parameters()}
    completions, student, hinted = batch()
    every = (*EVERY, *FURTHER)
    found = score(
        model, completions, student, hinted, needs=every, teacher_weights=teacher.weights, batch_size=2
    )
    agree(found, by_hand(model, teacher=frozen.eval()), every, 5e-5)
    alone = score(
        model, completions, student, hinted, needs=["teacher_entropy"], teacher_weights=teacher.weights
    )
    torch.testing.assert_close(alone.teacher_entropy, found.teacher_entropy, atol=1e-5, rtol=1e-5)
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())


def test_dropout_is_off_and_every_module_gets_its_mode_back(model):
    model.train()
    model.model.layers[0].eval()
    model.config.attention_dropout = 0.5
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.5
    completions, student, teacher = batch()
    first, second = (score(model, completions, student, teacher, needs=EVERY) for _ in range(2))
    assert all(torch.equal(first.get(name), second.get(name)) for name in EVERY)
    assert model.training
    assert not model.model.layers[0].training
    assert model.model.layers[1].training


def test_what_cannot_be_scored_is_said(model):
    completions, student, _ = batch()
    with pytest.raises(ValueError, match=r"teacher: .*divergence.*none were given"):
        score(model, completions, student, needs=["divergence"])
    with pytest.raises(ValueError, match="no signal is called 'magic'"):
        score(model, completions, student, needs=["magic"])
    with pytest.raises(ValueError, match=r"needs: \['token_id'\] are not all made by the two passes"):
        score(model, completions, student, needs=["token_id"])
    with pytest.raises(ValueError, match="Linear has no `base_model`"):
        backbone_of(nn.Linear(2, 3))


# --- passes that were run before, and the order of the rows --------------------------------------------------


@pytest.mark.parametrize("batch_size", [1, 2, 8])
@pytest.mark.parametrize("lent", [False, True])
def test_a_teacher_that_went_ahead_gives_the_same_bit_for_bit(model, batch_size, lent):
    completions, student, teacher = batch()
    options = {"batch_size": batch_size, "temperature": 0.7, "row_B": torch.tensor([True, False, True])}
    if lent:
        copy = CopyTeacher(model)
        with torch.no_grad():
            model.model.embed_tokens.weight.mul_(1.1)
        options["teacher_weights"] = copy.weights
    whole = score(model, completions, student, teacher, needs=(*EVERY, *FURTHER), **options)
    ahead = teacher_states(model, completions, teacher, **options)
    assert (ahead.head is not None) is lent
    assert len(ahead.hidden._hidden_ND) == 3 + 4, "of the trained tokens of rows 0 and 2, and of no other"
    found = score(model, completions, student, ahead, needs=(*EVERY, *FURTHER), **options)
    for name in (*EVERY, *FURTHER):
        assert torch.equal(found.get(name), whole.get(name)), name


def test_of_a_teacher_that_went_ahead_some_rows_can_be_asked(model):
    completions, student, teacher = batch()
    whole = score(model, completions, student, teacher, needs=EVERY, batch_size=1)
    ahead = teacher_states(model, completions, teacher, batch_size=1)
    rows = torch.tensor([2, 0])
    some = Completions(
        ids=completions.ids[rows], attention=completions.attention[rows], mask=completions.mask[rows]
    )
    prompts = Prompts(ids_BP=student.ids_BP[rows], attention_BP=student.attention_BP[rows])
    found = score(model, some, prompts, ahead.rows(rows), needs=EVERY, batch_size=1)
    for name in EVERY:
        assert torch.equal(found.get(name), whole.get(name)[rows]), name


def test_states_of_the_student_stand_for_its_pass(model):
    completions, student, teacher = batch()
    whole = score(model, completions, student, teacher, needs=EVERY)
    states = KeptStates(completions.attention.bool())
    ids = torch.cat([student.ids_BP, completions.ids], 1)
    attention = torch.cat([student.attention_BP, completions.attention], 1)
    calls = []
    with torch.no_grad():
        for rows in (torch.tensor([0, 1]), torch.tensor([2])):
            keep = states.mask[rows]
            states.take(rows, keep, hidden_states(model, ids[rows], attention[rows], num_tokens=9)[keep])
    model.register_forward_hook(lambda *given: calls.append(given))
    found = score(model, completions, student, teacher, needs=EVERY, student_states=states)
    assert len(calls) == 1, "the teacher's"
    for name in EVERY:
        torch.testing.assert_close(found.get(name), whole.get(name), atol=1e-5, rtol=1e-5)


def test_states_that_nobody_kept_are_an_error():
    with pytest.raises(ValueError, match="states: no forward was kept"):
        KeptStates(torch.ones(1, 2, dtype=torch.bool))(torch.tensor([0]), torch.ones(1, 1, dtype=torch.bool))


def test_rows_are_batched_by_length_and_stay_in_their_places(model):
    """Lengths 4, 2 and 7 in twos: the longest with the next, so that the shortest is padded to nothing."""
    completions, student, _ = batch()
    widths = []
    handle = backbone_of(model).register_forward_pre_hook(
        lambda module, args, given: widths.append(tuple(given["input_ids"].shape)), with_kwargs=True
    )
    found = score(model, completions, student, needs=["student_logprob"], batch_size=2)
    handle.remove()
    assert widths == [(2, 3 + 7), (1, 5 + 2)]
    agree(found, by_hand(model), ["student_logprob"])


def test_rows_of_a_prompt_stay_together_where_it_is_shared(model):
    completions, _, _ = batch()
    prompts = left_padded([TeacherPrompt(tuple(range(5, 25 + b))) for b in (0, 0, 1)], PAD)
    calls = []
    backbone_of(model).register_forward_pre_hook(
        lambda module, args, given: calls.append(tuple(given["input_ids"].shape)), with_kwargs=True
    )
    score(model, completions, prompts, needs=["student_logprob"], batch_size=2, share_prompts=True)
    # By length it would be rows 2 and 0, then row 1.
    assert calls == [(1, 20), (2, 3), (1, 21 + 7)], "rows 0 and 1 on one prompt, then row 2"
