"""What the TRL engine collects of a batch for the credit step, and how it runs the passes."""

import dataclasses
from types import SimpleNamespace

import pytest
import torch

from engines.probing import SCRIPTS, WEIGHTS, Pass, Probe, Shop, passed, shop
from engines.scripted import END
from gear_rl.engines.trl.rollouts import Rollouts
from gear_rl.signals.answers import answer_regions
from gear_rl.signals.confidence import AnswerConfidence
from gear_rl.signals.saliency import AnswerActivation, AnswerGradient, AnswerOcclusion
from gear_rl.signals.text_units import LINE_END, SENTENCE_END, unit_ids
from gear_rl.signals.transport import TransportDistance
from gear_rl.signals.turns import AnchorId, anchor_ids
from gear_rl.tensor.segments import turn_ids
from gear_rl.types import Signal, is_per_row
from support.scoring import passed as passed_alone


@pytest.fixture(scope="module")
def desk(tiny_model, tmp_path_factory):
    return shop(tmp_path_factory.mktemp("desk"), tiny_model)


def seen_by_a_method(trainer, *needs: str | Signal, **settings) -> Pass:
    """A pass for a method that sees every completion, so that no row is left out by its advantage."""
    return passed(trainer, Probe(needs=needs, additive=True), **settings)


def of_turns(found: Pass, name: str, b: int) -> list[float]:
    """The signal's one number on each turn of completion b."""
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
    assert torch.equal(signals.sentence_id, unit_ids(texts, mask, SENTENCE_END))
    assert torch.equal(signals.line_id, unit_ids(texts, mask, LINE_END))
    answers = [
        desk._tokenizer.decode(row[part == 1]) for row, part in zip(ids, signals.answer_region, strict=True)
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
    own = passed_alone(
        plain.model,
        signals,
        found.completions,
        found.student,
        answer_region=region,
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
    own = passed_alone(
        desk.model,
        [AnswerConfidence()],
        found.completions,
        found.student,
        answer_ids_BN=torch.nn.utils.rnn.pad_sequence(
            [torch.tensor(ids) for ids in answers], batch_first=True, padding_value=-1
        ),
        batch_size=4,
    )["answer_confidence"]
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
    own = passed_alone(
        desk.model,
        [TransportDistance(window_tokens=6, stride_tokens=2)],
        found.completions,
        found.student,
        judged_group_B=torch.tensor([0, 0, 0, 0, 1, 1, 1, 1]),
        succeeded_B=torch.tensor([1, 0, 0, 1, 0, 1, 1, 1]),  # 1.5 and 1.0 on are right
        batch_size=4,
    )["transport_distance"]
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
    assert len({*others}) == 5 and every[4][2] not in others, "another group's sight of a is another state"


@pytest.mark.parametrize("rank", [0, 1])
def test_groups_are_numbered_over_all_processes(rank):
    rollouts = Rollouts()
    rollouts.rows, rollouts.ids, rollouts.rewards = (
        [{}] * 4,
        [[2]] * 4,
        [0.0, 1.0, None, 3.0, 4.0, 5.0, 6.0, 7.0],
    )
    rollouts.rewards_each, rollouts.messages, rollouts.prompts = (
        torch.arange(8.0)[:, None],
        [""] * 4,
        [""] * 4,
    )
    trainer = SimpleNamespace(
        accelerator=SimpleNamespace(process_index=rank), eos_token_ids=[2], num_generations=2,
        state=SimpleNamespace(global_step=5), environments=None, tools=[],
    )  # fmt: skip
    ones = torch.ones(4, 3).long()
    names = ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask")
    batch = rollouts.batch(trainer, {**dict.fromkeys(names, ones), "advantages": torch.zeros(4)})
    assert list(batch.group) == [2 * rank, 2 * rank, 2 * rank + 1, 2 * rank + 1]
    assert (batch.step, batch.first, batch.num_rollouts) == (5, 4 * rank, 8)
    assert batch.rewards == rollouts.rewards[4 * rank : 4 * rank + 4]
    assert batch.rewards_BR[:, 0].tolist() == [4 * rank + b for b in range(4)]


LOGS = [[k + 0.25 * b for k in range(len(script))] for b, script in enumerate(SCRIPTS)]


@pytest.mark.parametrize(
    ("logs", "environment", "expected"),
    [
        (
            None,
            None,
            [[1, 0], [1, 0], [0], [0, 0], [1, 1, 0], [0], [1, 0], [1, 0]],
        ),  # calls that did not fail
        (LOGS, None, LOGS),
        (
            LOGS,
            lambda self: [float(len(place)) for place in self.seen],
            [[1, 0], [2, 0], [0], [0, 0], [1, 3, 0], [0], [1, 0], [2, 0]],
        ),
    ],
    ids=["calls", "reward function", "environment"],
)
def test_where_a_turns_reward_comes_from(desk, monkeypatch, logs, environment, expected):
    monkeypatch.setattr(desk, "logs", logs)
    monkeypatch.setattr(Shop, "_given", environment)
    found = seen_by_a_method(desk, "turn_reward")
    assert [of_turns(found, "turn_reward", b) for b in range(8)] == expected
    assert (found.shown[1].turn_reward[~found.mask] == 0).all()


def test_a_turns_reward_that_does_not_fit_is_the_reward_functions_error(desk, monkeypatch):
    monkeypatch.setattr(desk, "logs", [[1.0] * 5 for _ in SCRIPTS])
    message = r"turn_rewards: rollout 0 has 2 turns, but a reward function gave 5"
    with pytest.raises(ValueError, match=message):
        seen_by_a_method(desk, "turn_reward")


def test_passes_take_temperature_batch_size_seed_and_pattern_of_the_settings(tiny_model, tmp_path):
    trainer = shop(tmp_path, tiny_model, tools=False, temperature=0.9)
    answers = ["2 [3]", "is [14].", "none.", "[3]\n#", "so [7]", "a [9].", "[1] [2]", "[]"]
    trainer.scripts = [[answer + END] for answer in answers]
    signals = AnswerOcclusion("joint"), AnswerGradient("joint", 0.02), AnswerActivation("last", "content")
    settings = {"credit_batch_size": 3, "seed": 5}
    found = seen_by_a_method(trainer, *signals, answer_pattern=r"\[(.*)\]", **settings)
    output = found.output
    texts = [[trainer._tokenizer.decode([int(t)]) for t in row] for row in output["completion_ids"]]
    region = answer_regions(texts, found.mask, r"\[(.*)\]")
    assert (region == 1).any(-1).tolist() == [True, True, False, True, True, True, True, False]
    own = saliency(
        trainer.model,
        Completions(ids=output["completion_ids"], attention=output["completion_mask"], mask=found.mask),
        Prompts(ids_BP=output["prompt_ids"], attention_BP=output["prompt_mask"]),
        region,
        signals,
        pad_id=trainer._tokenizer.pad_token_id,
        temperature=0.9,
        batch_size=3,
        seed=5,
    )
    for name, value in own.items():
        assert torch.equal(getattr(found.shown[1], name), value), name


@pytest.mark.parametrize(
    ("needs", "forwards"),
    [
        ((), 0),
        (("student_logprob", "student_entropy"), 2),  # eight rows, four at a time
        (("student_logprob", "reference_logprob"), 4),
        (("student_entropy", "divergence", "js_divergence", "teacher_entropy"), 4),
        (("answer_confidence",), 4),  # fifteen turns
    ],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else "",
)
def test_no_pass_is_run_that_no_signal_needs(desk, needs, forwards, monkeypatch):
    # A pass that shares prompts is two forwards: of the prompts, and of what follows them.
    for module in ("prefix", "score"):
        monkeypatch.setattr(f"gear_rl.signals.{module}.shared_prompts", lambda *_, **__: None)
    assert desk.padding_moves in (True, False)  # measured once for a model, by two forwards of its own
    count = []
    handle = desk.model.base_model.register_forward_hook(lambda *_: count.append(1))
    found = seen_by_a_method(desk, *needs)
    handle.remove()
    assert len(count) == forwards
    for name in needs:
        value = getattr(found.shown[1], name)
        assert not value.requires_grad and value.dtype == torch.float32 and (value[~found.mask] == 0).all()


@pytest.mark.parametrize("additive", [False, True])
def test_only_an_additive_method_is_shown_completions_without_an_advantage(desk, monkeypatch, additive):
    monkeypatch.setattr(desk, "judgement", [[1.0, 0.0, 1.0, 0.0] + [1.0] * 4, [0.0] * 8])
    scored = ("student_entropy", "reference_logprob", "answer_confidence")
    found = passed(desk, Probe(needs=(*scored, "reward_B"), additive=additive, bonus=0.5))
    assert found.base_B[4:].tolist() == [0.0] * 4
    for name in scored:
        assert getattr(found.shown[1], name).any(-1).tolist() == [True] * 4 + [additive] * 4, name
    bonus = torch.where(found.mask & ((found.base_B != 0)[:, None] | additive), 0.5, 0.0)
    torch.testing.assert_close(found.advantage, found.plain + bonus)
    assert found.metrics["gear/scored"] == [8.0 if additive else 4.0]


def test_a_method_that_distils_must_say_what(desk):
    @dataclasses.dataclass(frozen=True)
    class Distils(Probe):
        def __call__(self, advantage_B, signals):
            credit = super().__call__(advantage_B, signals)
            return dataclasses.replace(credit, distill_weight=signals.mask.float())

    with pytest.raises(ValueError, match="'probe' gives distill_weight, but has no `distillation`"):
        passed(desk, Distils(needs=("student_entropy",), additive=True))
