"""Each signal that a method asks the TRL engine for is what the signal's own function says of the batch."""

import dataclasses
import math

import pytest
import torch
from peft import LoraConfig
from transformers import AutoModelForCausalLM

from engines import tiny
from engines.probing import SCRIPTS, WEIGHTS, Pass, Probe, Shop, passed, shop
from engines.scripted import END
from gear_rl import GEARConfig, GEARTrainer
from gear_rl.methods import Gigpo, Grail, Igpo, OarG, OarP, Shear
from gear_rl.signals.answers import answer_regions
from gear_rl.signals.confidence import AnswerConfidence, answer_confidence
from gear_rl.signals.saliency import AnswerActivation, AnswerGradient, AnswerOcclusion
from gear_rl.signals.text_units import line_ids, sentence_ids
from gear_rl.signals.transport import TransportDistance, transport_distances
from gear_rl.signals.turns import AnchorId, anchor_ids
from gear_rl.tensor.segments import turn_ids
from gear_rl.types import Signal, is_per_row
from signals.saliency_loops import saliency


@pytest.fixture(scope="module")
def desk(tiny_model, tmp_path_factory):
    return shop(tmp_path_factory.mktemp("desk"), tiny_model)


@pytest.fixture(scope="module")
def plain(tiny_model, tmp_path_factory):
    """Without tools, and with short answers: one forward is due for every token before an answer."""
    trainer = shop(tmp_path_factory.mktemp("plain"), tiny_model, tools=False, temperature=0.9)
    answers = ["2 [3]", "is [14].", "none.", "[3]\n#", "so [7]", "a [9].", "[1] [2]", "[]"]
    trainer.scripts = [[answer + END] for answer in answers]
    return trainer


def asked(trainer, *needs: str | Signal, rows=None, additive=True, **settings) -> Pass:
    """A pass for a method that sees every completion, so that no row is left out by its advantage."""
    return passed(trainer, Probe(needs=needs, additive=additive), rows, **settings)


def texts_of(trainer, ids):
    return [[trainer.processing_class.decode([int(token)]) for token in row] for row in ids]


def of_turns(found: Pass, name: str, b: int) -> list[float]:
    """What the signal holds on each turn of completion b; it must be one number there."""
    turn_id, values = turn_ids(found.mask)[b], getattr(found.shown[1], name)[b]
    every = [values[turn_id == k].unique().tolist() for k in range(int(turn_id.max()) + 1)]
    assert all(len(value) == 1 for value in every), every
    return [value[0] for value in every]


# --- text -------------------------------------------------------------------------------------------------------


def test_text_signals(desk):
    found = asked(desk, "answer_region", "sentence_id", "line_id")
    signals, mask, ids = found.shown[1], found.mask, found.completions.ids
    texts = texts_of(desk, ids)
    assert torch.equal(signals.answer_region, answer_regions(texts, mask))
    assert torch.equal(signals.sentence_id, sentence_ids(texts, mask))
    assert torch.equal(signals.line_id, line_ids(texts, mask))
    answers = [
        desk.processing_class.decode(row[region == 1])
        for row, region in zip(ids, signals.answer_region, strict=True)
    ]
    assert answers == ["3", "14", "", "3", "7", "9", "", "1"]
    assert found.metrics["gear/answers"] == [6 / 8]
    assert signals.sentence_id.amax(-1)[2] == 1 and signals.line_id.amax(-1)[5] == 0


def test_the_ids_of_the_sampled_tokens(desk):
    found = asked(desk, "token_id")
    signals, ids = found.shown[1], found.completions.ids
    assert signals.token_id.dtype == torch.int64
    assert torch.equal(signals.token_id[found.mask], ids[found.mask])
    assert (signals.token_id[~found.mask] == -1).all(), "tool output is none of them"
    between = ~found.mask & (found.mask.cumsum(-1) > 0) & (found.mask.flip(-1).cumsum(-1).flip(-1) > 0)
    assert between.any(), "else nothing is shown"


def test_a_pattern_of_the_users_finds_the_answer(desk):
    found = asked(desk, "answer_region", answer_pattern=r"(No|Hm)")
    region, ids = found.shown[1].answer_region, found.completions.ids
    told = [desk.processing_class.decode(row[here == 1]) for row, here in zip(ids, region, strict=True)]
    assert told == ["", "", "No", "Hm", "", "", "", ""]
    assert found.metrics["gear/answers"] == [2 / 8]


# --- what the answer depends on --------------------------------------------------------------------------------

SALIENCY = {
    "default": ((AnswerOcclusion(), AnswerGradient(), AnswerActivation()), {}),
    "other": (
        (AnswerOcclusion("joint"), AnswerGradient("joint", 0.02), AnswerActivation("last", "content")),
        {"credit_batch_size": 3, "seed": 5},
    ),
}


@pytest.mark.parametrize(("signals", "settings"), SALIENCY.values(), ids=SALIENCY)
def test_saliency(plain, signals, settings):
    found = asked(plain, *signals, answer_pattern=r"\[(.*)\]", **settings)
    texts = texts_of(plain, found.completions.ids)
    region = answer_regions(texts, found.mask, r"\[(.*)\]")
    assert (region == 1).any(-1).tolist() == [True, True, False, True, True, True, True, False]
    own = saliency(
        plain.model,
        found.completions,
        found.student,
        region,
        signals,
        pad_id=plain.processing_class.pad_token_id,
        temperature=0.9,
        batch_size=3 if settings else 4,
        seed=settings.get("seed", 42),
    )
    for name in own:
        value = getattr(found.shown[1], name)
        assert torch.equal(value, own[name]), name
        assert value.any(-1).tolist()[:3] == [True, True, False], name


def test_the_noise_is_another_at_every_step(plain):
    settings = {"answer_pattern": r"\[(.*)\]"}
    first = asked(plain, "answer_gradient", **settings).shown[1].answer_gradient
    again = asked(plain, "answer_gradient", **settings).shown[1].answer_gradient
    plain.state.global_step = 1
    later = asked(plain, "answer_gradient", **settings).shown[1].answer_gradient
    plain.state.global_step = 0
    assert torch.equal(first, again) and not torch.equal(first, later)


# --- the ground truth -------------------------------------------------------------------------------------------


def test_the_confidence_is_of_the_ground_truth_as_the_template_writes_it(desk):
    found = asked(desk, AnswerConfidence("= {privileged_context}<|im_end|>"))
    rows = list(tiny.rows(2))
    # `<|im_end|>` is text in an answer: it ends no turn.
    tokenizer = desk.processing_class
    answers = [
        tokenizer(f"= {row['privileged_context']}<|im_end|>", split_special_tokens=True)["input_ids"]
        for row in rows
        for _ in range(4)
    ]
    own = answer_confidence(desk.model, found.completions, found.student, answers, batch_size=4)
    value = found.shown[1].answer_confidence
    assert torch.equal(value, own)
    assert len(of_turns(found, "answer_confidence", 4)) == 3
    assert (value[found.mask] > 0).all() and not torch.equal(
        value, asked(desk, "answer_confidence").shown[1].answer_confidence
    )


def test_where_there_is_no_ground_truth_nothing_is_asked(desk):
    rows = [
        row | {"privileged_context": None, "answer": ""} if i else row for i, row in enumerate(tiny.rows(2))
    ]
    found = asked(desk, "answer_confidence", "group_B", rows=rows)
    advantage_B, signals = found.shown
    assert signals.mask.any(-1).tolist() == [True] * 4 + [False] * 4
    assert advantage_B[4:].tolist() == [0.0] * 4
    assert set(signals.group_B[4:].tolist()).isdisjoint(signals.group_B[:4].tolist())
    assert torch.equal(found.advantage, found.plain)
    assert found.metrics["gear/fallback/no_context"] == [4.0]
    assert found.metrics["gear/context/row"] == [4.0] and found.metrics["gear/context/environment"] == [0.0]


# --- beside each other ------------------------------------------------------------------------------------------


def test_rewards_as_the_trainer_weighs_and_sums_them(desk):
    found = asked(desk, "group_B", "reward_B", "rewards_BR")
    signals = found.shown[1]
    assert WEIGHTS == [1.0, 0.5]
    # Each reward function's value times its weight; where it abstained, 0.
    each = [[1.0, 1.0], [0.0, 0.0], [0.25, 0.5], [1.0, 0.5], [0.0, 0.0], [2.0, 0.5], [0.0, 1.5], [0.5, 0.5]]
    assert signals.rewards_BR.tolist() == each
    assert signals.reward_B.tolist() == [sum(row) for row in each]
    assert signals.group_B.tolist() == [0] * 4 + [1] * 4


def test_transport_distances_between_right_and_wrong(desk):
    pytest.importorskip("ot")
    found = asked(desk, TransportDistance(window_tokens=6, stride_tokens=2), success_reward=1.0)
    own = transport_distances(
        desk.model,
        found.completions,
        found.student,
        torch.tensor([0, 0, 0, 0, 1, 1, 1, 1]),
        torch.tensor([True, False, False, True, False, True, True, True]),  # 1.5 and 1.0 on are right
        window_tokens=6,
        stride_tokens=2,
        batch_size=4,
    )
    value = found.shown[1].transport_distance
    assert torch.equal(value, own)
    assert (value[found.mask] > 0).all() and value[0].unique().numel() > 2


def test_what_nobody_judged_is_neither_right_nor_wrong(desk, monkeypatch):
    pytest.importorskip("ot")
    rewards = [[1.0, 0.0, None, 1.0] + [1.0] * 3 + [None], [None] * 8]
    monkeypatch.setattr(desk, "judgement", rewards)
    signal = TransportDistance(window_tokens=6, stride_tokens=2)
    value = asked(desk, signal, success_reward=0.0).shown[1].transport_distance
    assert not value.any(), "from 0 on all that was judged is right, and the others are no failures"
    value = asked(desk, signal, success_reward=0.5).shown[1].transport_distance
    assert value.any(-1).tolist() == [True, True, False, True] + [False] * 4


# --- turns ------------------------------------------------------------------------------------------------------


def test_a_turns_reward_where_nobody_says_it(desk):
    found = asked(desk, "turn_reward")
    every = [of_turns(found, "turn_reward", b) for b in range(8)]
    assert every == [[1, 0], [1, 0], [0], [0, 0], [1, 1, 0], [0], [1, 0], [1, 0]]


def test_a_turns_reward_that_a_reward_function_logs(desk, monkeypatch):
    logs = [[k + 0.25 * b for k in range(len(script))] for b, script in enumerate(SCRIPTS)]
    monkeypatch.setattr(desk, "logs", logs)
    found = asked(desk, "turn_reward")
    assert [of_turns(found, "turn_reward", b) for b in range(8)] == logs
    monkeypatch.setattr(desk, "logs", None)
    assert of_turns(asked(desk, "turn_reward"), "turn_reward", 7) == [1, 0], "not those of the batch before"


def test_a_turns_reward_that_the_environment_says(desk, monkeypatch):
    monkeypatch.setattr(desk, "logs", [[9.0] * len(script) for script in SCRIPTS])
    monkeypatch.setattr(Shop, "_tells", lambda self: [float(len(place)) for place in self.seen])
    found = asked(desk, "turn_reward")
    every = [of_turns(found, "turn_reward", b) for b in range(8)]
    assert every == [[1, 0], [2, 0], [0], [0, 0], [1, 3, 0], [0], [1, 0], [2, 0]]
    outside = ~found.mask
    assert (found.shown[1].turn_reward[outside] == 0).all() and outside.any()


def test_anchors_are_the_states_that_turns_of_a_group_began_in(desk):
    found = asked(desk, "anchor_id")
    every = [of_turns(found, "anchor_id", b) for b in range(8)]
    first = {ids[0] for ids in every[:4]}, {ids[0] for ids in every[4:]}
    assert [len(ids) for ids in first] == [1, 1] and first[0] != first[1], "the prompt, group by group"
    assert every[4][1] == every[6][1], "both had looked at a"
    others = [ids[1] for ids in (every[0], every[1], every[3], every[4], every[7])]
    assert len({*others}) == 5, "another group's sight of a is another state"
    assert every[4][2] not in others


def test_anchors_that_are_alike_enough(desk, monkeypatch):
    texts = [["start", "saw a thing"], ["start", "saw b thing"], ["start"], ["start", "an error"]] * 2
    texts = [
        row[: len(script)] + ["end"] * (len(script) - len(row))
        for row, script in zip(texts, SCRIPTS, strict=True)
    ]
    for similarity in (1.0, 0.8):
        calls = iter(texts)
        monkeypatch.setattr(Shop, "_state", lambda self, calls=calls: next(calls))
        found = asked(desk, AnchorId(similarity))
        own = anchor_ids(texts, [0] * 4 + [1] * 4, found.mask, similarity=similarity)
        assert torch.equal(found.shown[1].anchor_id, own)
        second = [of_turns(found, "anchor_id", b)[1] for b in (0, 1)]
        assert (second[0] == second[1]) == (similarity < 1)


# --- the first weights ------------------------------------------------------------------------------------------


def log_probs(model, found: Pass, temperature: float):
    prompt, attention = found.student.ids_BP, found.student.attention_BP
    ids, kept = found.completions.ids, found.completions.attention
    with torch.no_grad():
        out = model(input_ids=torch.cat([prompt, ids], 1), attention_mask=torch.cat([attention, kept], 1))
    logits = out.logits[:, -ids.shape[1] - 1 : -1] / temperature
    value = logits.log_softmax(-1).gather(-1, ids[..., None])[..., 0]
    return torch.where(found.mask, value, 0.0)


@dataclasses.dataclass(frozen=True)
class Reference(Probe):
    needs: tuple[str, ...] = ("reference_logprob", "student_logprob")


@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
def test_the_reference_is_the_first_model_after_training_and_after_resuming(tiny_model, tmp_path, lora):
    """Also where an adapter said something before the run: without it the model is another."""

    def trainer(probe):
        net = AutoModelForCausalLM.from_pretrained(tiny_model)
        peft = LoraConfig(r=2, target_modules=["q_proj", "v_proj"], lora_dropout=0.2) if lora else None
        changes = {"max_steps": 3, "save_strategy": "steps", "save_steps": 2, "learning_rate": 0.02}
        args = GEARConfig(**tiny.settings(tmp_path, temperature=0.8, **changes))
        torch.manual_seed(0)  # not every TRL has its seed set before it makes an adapter
        made = GEARTrainer(net, tiny.vowels, args, tiny.rows(), peft_config=peft, credit=probe)
        g = torch.Generator().manual_seed(7)
        with torch.no_grad():
            for name, p in made.model.named_parameters():
                if "lora_B" in name:
                    p.copy_(torch.randn(p.shape, generator=g) / 3)
        return made

    whole, resumed, first = trainer(Reference()), trainer(Reference()), trainer(Reference())
    first.model.eval()
    whole.train()
    file = tmp_path / "checkpoint-2" / "reference.safetensors"
    size, every = file.stat().st_size, sum(p.numel() for p in first.model.parameters() if p.requires_grad)
    assert every * 4 < size < every * 4 + 8000, "what is trained, and nothing else"
    outputs = []
    spread = GEARTrainer._spread

    def watched(inputs, output):
        outputs.append(output)
        return spread(resumed, inputs, output)

    resumed._spread = watched
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    signals = resumed.credit.shown[-1][1]
    found = Pass(probe=resumed.credit, base_B=torch.zeros(8), output=outputs[-1], metrics={})
    own = log_probs(first.model, found, 0.8)
    scored = signals.reference_logprob.any(-1)
    torch.testing.assert_close(signals.reference_logprob[scored], own[scored], rtol=1e-4, atol=1e-4)
    assert (signals.student_logprob - signals.reference_logprob)[scored].abs().max() > 0.05, "it has moved"
    assert torch.equal(signals.reference_logprob, whole.credit.shown[-1][1].reference_logprob)


def test_resuming_without_the_reference_says_so(tiny_model, tmp_path):
    args = {"max_steps": 2, "save_strategy": "steps", "save_steps": 1, "resume_anyway": True}
    for probe in (Probe(), Reference()):
        trainer = GEARTrainer(
            tiny_model, tiny.vowels, GEARConfig(**tiny.settings(tmp_path, **args)), tiny.rows(), credit=probe
        )
        if not probe.needs:
            trainer.train()
    with pytest.raises(ValueError, match=r"checkpoint-1: reference.safetensors: .* 0 parameters saved"):
        trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))


# --- nothing else -----------------------------------------------------------------------------------------------

FORWARDS = {
    (): 0,
    ("group_B", "reward_B", "rewards_BR", "turn_reward", "anchor_id"): 0,
    ("answer_region", "sentence_id", "line_id", "token_id"): 0,
    ("student_logprob", "student_entropy"): 2,  # eight rows, four at a time
    ("teacher_logprob",): 2,
    ("reference_logprob",): 2,
    ("student_logprob", "reference_logprob"): 4,
    ("student_entropy", "divergence", "js_divergence", "teacher_entropy"): 4,
    ("answer_confidence",): 4,  # fifteen turns
    ("transport_distance",): 2,
    ("answer_gradient",): 4,  # six rows with an answer: as they are, and with noise
    ("answer_activation",): 2,
}


@pytest.mark.parametrize("needs", FORWARDS, ids="-".join)
def test_nothing_that_is_not_needed_is_computed(desk, needs, monkeypatch):
    if "transport_distance" in needs:
        pytest.importorskip("ot")
    # A pass that shares prompts is two forwards: of the prompts, and of what follows them.
    for room in ("prefix", "score"):
        monkeypatch.setattr(f"gear_rl.signals.{room}.shared_prompts", lambda *_, **__: None)
    assert desk.padding_moves in (True, False)  # found out once for a model, by two forwards of its own
    count = []
    handle = desk.model.base_model.register_forward_hook(lambda *_: count.append(1))
    found = asked(desk, *needs)
    handle.remove()
    assert len(count) == FORWARDS[needs]
    assert {*found.shown[1].values} == {*needs}
    for name in needs:
        value = getattr(found.shown[1], name)
        assert not value.requires_grad
        if value.is_floating_point():
            assert value.dtype == torch.float32
        if not is_per_row(name):
            outside = value[~found.mask]
            assert (outside == (0 if value.is_floating_point() else -1)).all()


@pytest.mark.parametrize("additive", [False, True])
def test_only_an_additive_method_is_shown_completions_without_an_advantage(desk, monkeypatch, additive):
    monkeypatch.setattr(desk, "judgement", [[1.0, 0.0, 1.0, 0.0] + [1.0] * 4, [0.0] * 8])
    scored = ("student_entropy", "reference_logprob", "answer_confidence")
    probe = Probe(needs=(*scored, "reward_B"), additive=additive, bonus=0.5)
    found = passed(desk, probe)
    assert found.base_B[4:].tolist() == [0.0] * 4
    signals = found.shown[1]
    for name in scored:
        assert getattr(signals, name).any(-1).tolist() == [True] * 4 + [additive] * 4, name
    bonus = torch.where(found.mask & ((found.base_B != 0)[:, None] | additive), 0.5, 0.0)
    torch.testing.assert_close(found.advantage, found.plain + bonus)
    assert found.metrics["gear/scored"] == [8.0 if additive else 4.0]


# --- misuse -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"answer_pattern": "("}, r"answer_pattern: '\(' is not a regular expression"),
        ({"answer_pattern": r"(\w+\s*)+"}, "answer_pattern: .* repeats what is itself repeated"),
    ],
)
def test_bad_settings_are_named(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        GEARConfig(**tiny.settings(tmp_path, **changes))


@pytest.mark.parametrize(
    ("method", "settings", "message"),
    [
        (
            Igpo,
            {"answer_template": "the answer"},
            r"answer_template: 'the answer' lacks \{privileged_context\}",
        ),
        (OarP, {"readout": "max"}, "readout: 'max' is not one of mean, last, joint"),
        (OarG, {"readout": "max"}, "readout: 'max' is not one of mean, last, joint"),
        (OarG, {"noise_std": 0.0}, "noise_std: 0.0 must be a finite number above 0"),
        (OarG, {"noise_std": math.nan}, "noise_std: nan"),
        (Grail, {"layer": "8"}, "layer: '8' is not one of input, first, middle, last"),
        (Grail, {"loss_span": "all"}, "loss_span: 'all' is not one of box, content"),
        (Gigpo, {"anchor_similarity": 0.0}, "anchor_similarity: 0.0; give more than 0 and at most 1"),
        (Gigpo, {"anchor_similarity": 95.0}, "anchor_similarity: 95.0"),
        (Shear, {"window_tokens": 0}, "window_tokens: 0; give 1 token or more"),
        (Shear, {"stride_tokens": 0}, r"stride_tokens: 0 must be 1 to window_tokens \(100\)"),
        (Shear, {"window_tokens": 20}, r"stride_tokens: 25 must be 1 to window_tokens \(20\)"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_what_a_method_sets_of_its_signal_is_checked_by_the_method(method, settings, message):
    with pytest.raises(ValueError, match=message):
        method(**settings)


def test_a_turns_reward_that_does_not_fit_is_the_reward_functions_error(desk, monkeypatch):
    monkeypatch.setattr(desk, "logs", [[1.0] * 5 for _ in SCRIPTS])
    with pytest.raises(
        ValueError, match=r"turn_rewards: rollout 0 has 2 turns, but a reward function gave 5"
    ):
        asked(desk, "turn_reward")
