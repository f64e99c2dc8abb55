"""What the TRL engine collects of a batch for the credit step, and how it runs the passes."""

from typing import Any

import pytest
import torch
from accelerate import Accelerator
from transformers import Qwen3ForTokenClassification

from engines import tiny
from engines.probing import Probe
from engines.running import history, same, trained, weights
from engines.scripted import END, call, scripted
from gear_rl.engines.trl.engine import HeldWeights
from gear_rl.engines.trl.rollouts import Rollouts
from gear_rl.methods import StepScores
from gear_rl.rollouts import Completions, Prompts
from gear_rl.signals.answers import answer_regions
from gear_rl.signals.saliency import AnswerActivation, AnswerGradient, AnswerOcclusion
from gear_rl.tensor.segments import turn_ids
from support.scoring import passed as passed_alone

LOOK = call("look", '{"place": "a"}')
SCRIPTS = [
    [LOOK, f"It is \\boxed{{3}}.{END}"],
    [call("look", '{"place": "bb"}'), f"One.\nSo \\boxed{{14}}{END}"],
    [f"No box. Sorry!{END}"],
    [call("fail"), f"Hm. \\boxed{{3}}{END}"],
    [LOOK, call("look", '{"place": "ccc"}'), f"so \\boxed{{7}}{END}"],
    [f"\\boxed{{9}}{END}"],
    [LOOK, "cut off"],
    [call("look", '{"place": "zz"}'), f"x \\boxed{{1}} y.{END}"],
]
"""Two groups of four: one, two and three turns, a failed call, no answer, a rollout that was cut off."""
REWARDS: list[list[float | None]] = [
    [1.0, 0.0, 0.25, 1.0, 0.0, 2.0, 0.0, 0.5],
    [2.0, None, 1.0, 1.0, None, 1.0, 3.0, 1.0],
]
LOGS = [[k + 0.25 * b for k in range(len(script))] for b, script in enumerate(SCRIPTS)]


class Shop:
    """Tools to look and to fail; ``_given`` are a test's values of its turns."""

    _given: Any = None

    def reset(self, **row: Any) -> None:
        self.seen: list[str] = []

    def look(self, place: str) -> str:
        """Look.

        Args:
            place: Where.
        """
        self.seen.append(place)
        return f"saw {place}"

    def fail(self) -> str:
        """Raise."""
        self.seen.append("")
        raise KeyError("no")

    def turn_rewards(self) -> Any:
        return self._given and self._given()


def shop(folder, model, *, tools: bool = True, **changes: Any):
    """A trainer that answers ``SCRIPTS`` and is judged by ``REWARDS``; ``trainer.logged`` are logged rewards."""

    def judged(k: int):
        def judge(completions: Any, log_extra: Any, **_: Any) -> list[float | None]:
            if trainer.logged is not None:
                log_extra("turn_rewards", trainer.logged)
            return REWARDS[k]

        judge.__name__ = f"judge_{k}"
        return judge

    changes = {"max_completion_length": 400, "reward_weights": [1.0, 0.5], "max_steps": 1, **changes}
    trainer = scripted(
        model,
        tiny.rows(),
        tiny.settings(folder, **changes),
        SCRIPTS,
        credit=Probe(),
        reward_funcs=[judged(0), judged(1)],
        environment_factory=Shop if tools else None,
    )
    trainer.logged = None
    return trainer


@pytest.fixture(scope="module")
def desk(tiny_model, tmp_path_factory):
    return shop(tmp_path_factory.mktemp("desk"), tiny_model)


def seen_by_a_method(trainer, *needs: Any):
    """TRL's output of two groups of four, the mask, and the signals that a method is shown of all of them."""
    Accelerator(cpu=True)  # every new config takes its state from the trainers that there are
    probe = Probe(needs=needs, additive=True)
    trainer.credit, trainer.held_weights = probe, HeldWeights(trainer, starts_as_base=False)
    trainer._metrics["train"].clear()
    trainer.model.train()
    output = trainer._generate_and_score_completions([dict(row) for row in tiny.rows(2) for _ in range(4)])
    [(_, signals)] = probe.shown
    attention = output["completion_mask"]
    return output, (attention * output.get("tool_mask", 1)).bool(), signals


def of_turns(mask, values, b: int) -> list[float]:
    """The signal's one number on each turn of completion b."""
    turn_id = turn_ids(mask)[b]
    every = [values[b][turn_id == k].unique().tolist() for k in range(int(turn_id.max()) + 1)]
    assert all(len(value) == 1 for value in every), every
    return [value[0] for value in every]


def test_ids_answers_rewards_and_anchors(desk):
    needs = ("token_id", "answer_region", "group_B", "reward_B", "rewards_BR", "anchor_id")
    output, mask, signals = seen_by_a_method(desk, *needs)
    ids = output["completion_ids"]
    assert {*signals.values} == {*needs}, "nothing else is computed"
    assert torch.equal(signals.token_id, torch.where(mask, ids, -1))
    assert (~mask & (mask.cumsum(-1) > 0) & (mask.flip(-1).cumsum(-1).flip(-1) > 0)).any(), "tool output"
    answers = [
        desk._tokenizer.decode(row[part == 1]) for row, part in zip(ids, signals.answer_region, strict=True)
    ]
    assert answers == ["3", "14", "", "3", "7", "9", "", "1"]
    assert desk._metrics["train"]["gear/answers"] == [6 / 8]
    # Each reward function's value times its weight; where it abstained, 0.
    each = [[1.0, 1.0], [0.0, 0.0], [0.25, 0.5], [1.0, 0.5], [0.0, 0.0], [2.0, 0.5], [0.0, 1.5], [0.5, 0.5]]
    assert signals.rewards_BR.tolist() == each
    assert signals.reward_B.tolist() == [sum(row) for row in each]
    assert signals.group_B.tolist() == [0] * 4 + [1] * 4
    every = [of_turns(mask, signals.anchor_id, b) for b in range(8)]
    first = {ids[0] for ids in every[:4]}, {ids[0] for ids in every[4:]}
    assert [len(ids) for ids in first] == [1, 1] and first[0] != first[1], "the prompt, group by group"
    assert every[4][1] == every[6][1], "both had looked at a"
    others = [ids[1] for ids in (every[0], every[1], every[3], every[4], every[7])]
    assert len({*others}) == 5 and every[4][2] not in others, "another group's sight of a is another state"


def test_a_weight_of_0_is_no_reward_and_an_infinite_one_stays():
    rollouts, inf = Rollouts(), torch.inf
    rollouts.judge(torch.tensor([[1.0, inf], [inf, inf]]), weights=torch.tensor([1.0, 0.0]), num_tries=1)
    assert rollouts.rewards == [1.0, inf] and rollouts.rewards_each.tolist() == [[1.0, 0.0], [inf, 0.0]]


@pytest.mark.parametrize(
    ("logs", "environment", "expected"),
    [
        # Calls that did not fail.
        (None, None, [[1, 0], [1, 0], [0], [0, 0], [1, 1, 0], [0], [1, 0], [1, 0]]),
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
    monkeypatch.setattr(desk, "logged", logs)
    monkeypatch.setattr(Shop, "_given", environment)
    _, mask, signals = seen_by_a_method(desk, "turn_reward")
    assert [of_turns(mask, signals.turn_reward, b) for b in range(8)] == expected
    assert (signals.turn_reward[~mask] == 0).all()


def test_passes_take_temperature_batch_size_seed_and_pattern_of_the_settings(tiny_model, tmp_path):
    settings = {"temperature": 0.9, "credit_batch_size": 3, "seed": 5, "answer_pattern": r"\[(.*)\]"}
    trainer = shop(tmp_path, tiny_model, tools=False, **settings)
    answers = ["2 [3]", "is [14].", "none.", "[3]\n#", "so [7]", "a [9].", "[1] [2]", "[]"]
    trainer.scripts = [[answer + END] for answer in answers]
    needs = AnswerOcclusion(), AnswerGradient(0.02), AnswerActivation()
    output, mask, signals = seen_by_a_method(trainer, *needs)
    texts = [[trainer._tokenizer.decode([int(t)]) for t in row] for row in output["completion_ids"]]
    region = answer_regions(texts, mask, r"\[(.*)\]")
    assert (region == 1).any(-1).tolist() == [True, True, False, True, True, True, True, False]
    own = passed_alone(
        trainer.model,
        needs,
        Completions(ids=output["completion_ids"], attention=output["completion_mask"], mask=mask),
        Prompts(ids_BP=output["prompt_ids"], attention_BP=output["prompt_mask"]),
        answer_region=region,
        pad_id=trainer._tokenizer.pad_token_id,
        temperature=0.9,
        batch_size=3,
        seed=5,
    )
    for name, value in own.items():
        assert torch.equal(getattr(signals, name), value), name


def test_scores_of_a_reward_function_and_of_a_reward_model_train(tiny_model, tmp_path):
    """One run with a score for every token, one with a classifier's: both move the weights as GRPO does not."""

    def judge(completions: Any, completion_ids: Any, log_extra: Any, **_: Any) -> list[float]:
        for ids in completion_ids:  # one by one, as TRL takes them too
            log_extra("step_scores", [[float(token % 2) for token in ids]])
        return tiny.vowels(completions)

    config = tiny.model(len(tiny.tokenizer())).config
    config.num_labels = 2
    for part in (Qwen3ForTokenClassification(config), tiny.tokenizer()):
        part.save_pretrained(tmp_path / "prm")
    found = {}
    for name, method in {
        "grpo": StepScores(strength=0.0),
        "logged": StepScores(steps="tokens", use="weights"),
        "prm": StepScores(steps="tokens", discount=0.5, prm=str(tmp_path / "prm")),
    }.items():
        trainer = trained(tmp_path / name, tiny_model, method, reward=judge, max_steps=2)
        assert not any(history(trainer, "gear/fallback/non_finite"))
        found[name] = weights(trainer)
    assert not any(same(found["grpo"], found[name]) for name in ("logged", "prm"))
    assert not same(found["logged"], found["prm"])
