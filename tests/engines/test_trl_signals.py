"""What the TRL engine collects of a batch for the credit step, and how it runs the passes."""

import dataclasses
from types import SimpleNamespace

import pytest
import torch

from engines.probing import SCRIPTS, WEIGHTS, Pass, Probe, Shop, passed, shop
from engines.scripted import END
from gear_rl.engines.trl.rollouts import Rollouts
from gear_rl.signals.answers import answer_regions
from gear_rl.signals.batch import Completions, Prompts
from gear_rl.signals.saliency import AnswerActivation, AnswerGradient, AnswerOcclusion
from gear_rl.tensor.segments import turn_ids
from gear_rl.types import Signal
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


def test_ids_answers_rewards_and_anchors(desk):
    needs = ("token_id", "answer_region", "group_B", "reward_B", "rewards_BR", "anchor_id")
    found = seen_by_a_method(desk, *needs)
    signals, mask, ids = found.shown[1], found.mask, found.output["completion_ids"]
    assert {*signals.values} == {*needs}, "nothing else is computed"
    assert torch.equal(signals.token_id, torch.where(mask, ids, -1))
    assert (~mask & (mask.cumsum(-1) > 0) & (mask.flip(-1).cumsum(-1).flip(-1) > 0)).any(), "tool output"
    answers = [
        desk._tokenizer.decode(row[part == 1]) for row, part in zip(ids, signals.answer_region, strict=True)
    ]
    assert answers == ["3", "14", "", "3", "7", "9", "", "1"]
    assert found.metrics["gear/answers"] == [6 / 8]
    assert WEIGHTS == [1.0, 0.5]
    # Each reward function's value times its weight; where it abstained, 0.
    each = [[1.0, 1.0], [0.0, 0.0], [0.25, 0.5], [1.0, 0.5], [0.0, 0.0], [2.0, 0.5], [0.0, 1.5], [0.5, 0.5]]
    assert signals.rewards_BR.tolist() == each
    assert signals.reward_B.tolist() == [sum(row) for row in each]
    assert signals.group_B.tolist() == [0] * 4 + [1] * 4
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
    own = passed_alone(
        trainer.model,
        signals,
        Completions(ids=output["completion_ids"], attention=output["completion_mask"], mask=found.mask),
        Prompts(ids_BP=output["prompt_ids"], attention_BP=output["prompt_mask"]),
        answer_region=region,
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
