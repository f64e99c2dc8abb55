"""Which completions the credit step shows a method in the TRL engine, and with which it compares them."""

import dataclasses
import logging
import math

import pytest
import torch

import gear_rl.credit.step as credit_step
from engines.probing import REWARDS, SCRIPTS, Pass, Probe, Shop, passed, shop
from engines.scripted import END
from gear_rl import Shuffled
from gear_rl.credit.config import CreditConfig
from gear_rl.credit.contexts import contexts_of
from gear_rl.methods import METHODS, Crpo, EntropyForks, Gigpo, Igpo, MtGrpo, Opsd, Rlcsd, Sdpg
from gear_rl.traits import distillation_of
from gear_rl.types import Signal, TokenSignals
from support.batches import PlainEngine, batch_of
from test_contract import switched_off


@pytest.fixture(scope="module")
def desk(tiny_model, tmp_path_factory):
    return shop(tmp_path_factory.mktemp("desk"), tiny_model)


@pytest.fixture(scope="module")
def plain(tiny_model, tmp_path_factory):
    """Without tools, and with short answers."""
    trainer = shop(tmp_path_factory.mktemp("plain"), tiny_model, tools=False)
    answers = ["2 \\boxed{3}", "\\boxed{14}.", "none.", "\\boxed{3}\n#", "so", "a \\boxed{9}.", "b", "c d"]
    trainer.scripts = [[answer + END] for answer in answers]
    return trainer


def poisoning(monkeypatch, row: int, name: str, value: float = math.nan):
    """One number of a signal becomes ``value``."""
    collect = credit_step.collect

    def poisoned(*more):
        signals = collect(*more)
        x = getattr(signals, name).clone()
        x[(row,) if x.dim() == 1 else (row, 1)] = value
        return dataclasses.replace(signals, **{name: x})

    monkeypatch.setattr(credit_step, "collect", poisoned)


def alone(method, found: Pass, signals: TokenSignals, rows: list[int]):
    """What the method gives these completions if there are no others."""
    values = {name: x[rows] for name, x in signals.values.items()}
    turn_id = None if signals.turn_id is None else signals.turn_id[rows]
    own = TokenSignals(mask=signals.mask[rows], turn_id=turn_id, values=values)
    return method(found.base_B[rows], own).advantage


def signals_of(desk, *needs: str | Signal) -> TokenSignals:
    return passed(desk, Probe(needs=needs, additive=True)).shown[1]


# --- a completion that falls back -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("student_entropy", math.nan),
        ("turn_reward", math.inf),
        ("reward_B", -math.inf),
        ("rewards_BR", math.nan),
    ],
)
def test_a_bad_number_reaches_its_own_completion_alone(desk, monkeypatch, caplog, name, value):
    poisoning(monkeypatch, 1, name, value)
    found = passed(desk, Probe(needs=(name, "group_B"), additive=True, bonus=0.5))
    advantage_B, signals = found.shown
    others = [0, 2, 3, 4, 5, 6, 7]
    assert torch.equal(found.advantage[1], found.plain[1])
    assert torch.equal(found.advantage[others], (found.plain + 0.5 * found.mask)[others])
    assert found.metrics["gear/fallback/non_finite"] == [1.0]
    assert "1 completions had a NaN or Inf in a signal" in caplog.text
    # The method finds a completion without a token, in a group of its own.
    assert advantage_B.tolist() == [0.0 if b == 1 else a for b, a in enumerate(found.base_B.tolist())]
    assert torch.equal(signals.mask, found.mask & torch.tensor([[b != 1] for b in range(8)]))
    assert signals.group_B.tolist()[0] == 0 and signals.group_B.tolist().count(signals.group_B[1]) == 1
    assert not getattr(signals, name)[1].any() and getattr(signals, name).isfinite().all()
    assert (signals.turn_id[1] == -1).all()


def test_a_bad_number_where_the_advantage_is_0_reaches_no_sibling(desk, monkeypatch):
    monkeypatch.setattr(desk, "judgement", [[1.0, 0.5, 0.0, 0.5] * 2, [0.0] * 8])
    poisoning(monkeypatch, 1, "turn_reward")
    found = passed(desk, Probe(needs=("group_B", "turn_reward"), bonus=0.5))
    assert found.base_B[1] == 0
    assert found.shown[1].turn_reward.isfinite().all() and not found.shown[1].mask[1].any()
    assert found.metrics["gear/fallback/non_finite"] == [0.0]
    assert not found.advantage[1].any() and found.advantage[0].any()


def test_an_environments_values_for_other_turns_than_there_are(desk, monkeypatch, caplog):
    """MT-GRPO by hand, with three siblings in the first group: the second's turn rewards do not fit."""
    monkeypatch.setattr(Shop, "_given", lambda self: [7.0] * 5 if self.seen == ["bb"] else None)
    with caplog.at_level(logging.WARNING, logger="gear_rl"):
        found = passed(desk, MtGrpo())
    assert "rollout 1 has 2 turns, but the environment's turn_rewards() gave 5" in caplog.text
    assert found.metrics["gear/fallback/non_finite"] == [1.0]
    assert torch.equal(found.advantage[1], found.plain[1])
    first = torch.tensor([1.0, 0.0, 0.0])  # the fourth rollout's call failed
    both = first + torch.tensor([2.0, 0.75, 1.5])
    first, both = ((x - x.mean()) / (x.std() + 1e-4) for x in (first, both))
    for i, b in enumerate([0, 2, 3]):
        row, mask = found.advantage[b], found.mask[b]
        turn = (mask.long().diff(prepend=torch.zeros(1).long()) == 1).cumsum(-1)
        expected = torch.where(turn == 1, found.base_B[b] + first[i], found.base_B[b])
        expected = both[i].expand(mask.shape) if int(turn.max()) == 1 else expected
        torch.testing.assert_close(row, torch.where(mask, expected, 0.0))


# --- comparisons inside of a group and a batch ------------------------------------------------------------------


def test_an_entropy_that_is_not_finite_has_no_part_in_the_quantile(desk, monkeypatch):
    signals, others = signals_of(desk, "student_entropy"), [0, 1, 2, 3, 5, 6, 7]
    method = EntropyForks()
    assert method.scope == "batch"
    poisoning(monkeypatch, 4, "student_entropy")
    found = passed(desk, method)
    assert torch.equal(found.advantage[others], alone(method, found, signals, others))
    every = alone(method, found, signals, [*range(8)])
    assert not torch.equal(every[others], found.advantage[others]), "else nothing is shown"
    assert torch.equal(found.advantage[4], found.plain[4])


@pytest.mark.parametrize("method", [Rlcsd(), Igpo(), Igpo(baseline="token")], ids=repr)
def test_a_completion_without_context_has_no_part_in_what_the_others_get(desk, monkeypatch, method):
    monkeypatch.setattr(desk.args, "privileged_sources", ["function"])
    monkeypatch.setattr(desk, "privileged", lambda row, rollout: row["answer"])
    signals, first = signals_of(desk, *method.needs), SCRIPTS[2][0].removesuffix(END)
    monkeypatch.setattr(
        desk, "privileged", lambda row, rollout: None if rollout.text.startswith(first) else row["answer"]
    )
    found = passed(desk, method)
    others = [0, 1, 3, 4, 5, 6, 7]
    assert found.metrics["gear/fallback/no_context"] == [1.0]
    assert found.metrics["gear/context/function"] == [7.0]
    # A batch of other rows rounds otherwise, and RLCSD makes much of a small log-ratio.
    expected = alone(method, found, signals, others)
    torch.testing.assert_close(found.advantage[others], expected, rtol=1e-3, atol=1e-3)
    assert torch.equal(found.advantage[2], found.plain[2])
    every = alone(method, found, signals, [*range(8)])
    assert (every[others] - expected).abs().max() > 0.02, "else nothing is shown"


@pytest.mark.parametrize("method", [Gigpo(), Crpo(), MtGrpo(), Igpo()], ids=lambda m: m.name)
def test_a_completion_without_reward_is_no_failure_among_siblings(desk, monkeypatch, method):
    """TRL leaves it out of its group; so does every method that reads rewards."""
    signals = signals_of(desk, *method.needs)
    unjudged = [[None if b == 2 else reward for b, reward in enumerate(row)] for row in REWARDS]
    monkeypatch.setattr(desk, "judgement", unjudged)
    found = passed(desk, method)
    others = [0, 1, 3, 4, 5, 6, 7]
    assert found.base_B[2] == 0 and not found.advantage[2].any()
    torch.testing.assert_close(found.advantage[others], alone(method, found, signals, others))
    assert found.metrics["gear/fallbacks"] == [0.0]


def test_an_infinite_reward_falls_back_and_a_weight_of_0_is_no_reward(desk, monkeypatch):
    monkeypatch.setattr(desk, "judgement", [[math.inf, 0.0, 0.25, 1.0, *REWARDS[0][4:]], REWARDS[1]])
    found = passed(desk, Crpo())
    assert found.metrics["gear/fallback/non_finite"] == [1.0]
    assert torch.equal(found.advantage[0], found.plain[0])
    # Task rewards 0, 0.25, 1 and style rewards 0, 0.5, 0.5 of the three that are left.
    norm = [
        (x - x.mean()) / (x.std() + 1e-6)
        for x in (torch.tensor([0.0, 0.25, 1.0]), torch.tensor([0.0, 0.5, 0.5]))
    ]
    own = torch.stack([found.advantage[b][found.mask[b]][0] for b in (1, 2, 3)])
    torch.testing.assert_close(own, (norm[0] + norm[1]) / 2)
    monkeypatch.setattr(desk, "judgement", [REWARDS[0], [math.inf] * 8])
    monkeypatch.setattr(desk, "reward_weights", torch.tensor([1.0, 0.0]))
    signals = signals_of(desk, "rewards_BR", "reward_B")
    assert signals.rewards_BR[:, 1].tolist() == [0.0] * 8 and signals.reward_B.tolist() == REWARDS[0]


def test_where_no_completion_has_a_token_nothing_happens(desk, monkeypatch):
    monkeypatch.setattr(desk, "mask_truncated_completions", True)
    found = passed(desk, Probe(needs=("student_entropy", "group_B"), additive=True, bonus=0.5))
    assert found.metrics["gear/fallback/no_token"] == [1.0], "the seventh was cut off"
    assert not found.advantage[6].any() and found.shown[1].group_B.tolist() == [0] * 4 + [1] * 4
    monkeypatch.setattr(desk, "scripts", [["cut off"]] * 8)
    for method in (Igpo(), Gigpo(), MtGrpo(), Sdpg(), Opsd()):
        found = passed(desk, method)
        assert not found.mask.any() and not found.advantage.any()
        assert found.metrics["gear/fallback/no_token"] == [8.0] and found.metrics["gear/scored"] == [0.0]


# --- the whole catalogue ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", METHODS)
def test_every_method_works_in_the_engine_and_switched_off_is_grpo(name, request):
    if name == "shear":
        pytest.importorskip("ot")
    # OAR-P needs a forward for every token before the answer: short answers.
    trainer = request.getfixturevalue("plain" if name == "oar_p" else "desk")
    method, distils = METHODS[name](), distillation_of(METHODS[name]()) is not None
    found = passed(trainer, method)
    assert found.metrics["gear/fallbacks"] == [0.0]
    assert found.advantage.isfinite().all() and not found.advantage[~found.mask].any()
    if not distils or name in ("opsd", "sdpo", "sdpg"):
        assert torch.equal(found.advantage, found.plain) == (name in ("uniform", "sdpg"))
    assert ("gear_distill_weight" in found.output) == distils
    without = switched_off(name)
    if without is not None:
        off = passed(trainer, without)
        assert torch.equal(off.output["advantages"], off.base_B), "TRL's own tensor"
        assert "gear_distill_weight" not in off.output


@pytest.mark.parametrize("of", [Gigpo(), Sdpg(weight=0.5)], ids=lambda m: m.name)
def test_a_placebo_of_what_adds_or_distils(desk, monkeypatch, of):
    """The second group has no spread: a method that does not add would leave it alone."""
    monkeypatch.setattr(desk, "judgement", [[1.0, 0.0, 0.25, 1.0, *[1.0] * 4], REWARDS[1][:4] + [0.0] * 4])
    found, twin = passed(desk, of), passed(desk, Shuffled(of=of))
    key = "gear_distill_weight" if of.name == "sdpg" else "advantages"
    torch.testing.assert_close(found.output[key].sort().values, twin.output[key].sort().values)
    assert torch.equal(found.advantage, twin.advantage) == (of.name == "sdpg")
    assert twin.metrics["gear/fallbacks"] == [0.0] and twin.metrics["gear/scored"] == [8.0]


# --- the teacher's settings, for methods that distil ------------------------------------------------------------


def test_the_first_tokens_of_a_turn_are_not_distilled(desk):
    found = passed(desk, Opsd(strength=0.5), teacher_skip_first_tokens=3)
    weight, mask = found.output["gear_distill_weight"], found.mask
    opens = (mask.long().diff(prepend=torch.zeros(8, 1).long(), dim=-1) == 1).long()
    skipped = mask & ((opens + opens.roll(1, -1) + opens.roll(2, -1)) > 0)
    assert torch.equal(weight, torch.where(mask & ~skipped, 0.5, 0.0))
    assert skipped.sum(-1).tolist() == [6, 6, 3, 6, 9, 3, 6, 6]


def test_only_a_contrasted_signal_needs_a_wrong_context(desk, monkeypatch):
    """No rollout of the second group failed, so it has no wrong context."""
    monkeypatch.setattr(desk, "judgement", [[1.0, 0.0, 0.25, 1.0, 2.0, 1.0, 1.5, 1.0], [0.0] * 8])
    for method, missing in ((Opsd(), 0.0), (Igpo(), 0.0), (Rlcsd(), 4.0)):
        found = passed(desk, method, teacher_contrast="sibling")
        assert found.metrics["gear/fallback/no_context"] == [missing], method.name


# --- contexts of two processes ----------------------------------------------------------------------------------


class Letters:
    """A tokenizer of four letters and an end of text."""

    pad_token_id, all_special_tokens = 0, ("<e>",)

    def decode(self, ids, **_):
        return "".join("abcd"[i] for i in ids) + "<e>"

    def __call__(self, text, **_):
        return {"input_ids": ["abcd".index(letter) for letter in text]}


@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize(
    ("settings", "found", "wrong"),
    [
        (
            {"privileged_sources": ["row"], "teacher_contrast": "shuffled", "success_reward": 1.0},
            [["answer 0", "answer 0"], ["answer 1", "answer 1"]],
            [["answer 1", "answer 1"], ["answer 0", "answer 0"]],
        ),
        (
            {"privileged_sources": ["sibling"], "teacher_contrast": "sibling", "success_reward": 0.25},
            [[None, "a< e>"], ["d< e>", None]],
            [["b< e>", None], [None, "c< e>"]],
        ),
    ],
    ids=["shuffled", "sibling"],
)
def test_contexts_and_contrasts_keep_their_places_over_processes(index, settings, found, wrong):
    """Each process holds one group of two; rollouts a and d succeed."""
    rewards, config = [[1.0, 0.0], [0.0, 0.25]], CreditConfig(**settings)

    def contexts(rank, gather):
        batch = batch_of(
            torch.arange(4).view(2, 2)[rank][:, None],
            rows=[{"answer": f"answer {rank}"}] * 2,
            rewards=rewards[rank],
            group=[rank] * 2,
            first=2 * rank,
            num_rollouts=4,
        )
        engine = PlainEngine(Letters())
        engine.gather_objects = gather
        return contexts_of(batch, engine, config, None)

    gathered = {0: [], 1: []}
    for rank in (0, 1):  # what each gives, in the order in which it is gathered
        contexts(rank, lambda local, rank=rank: gathered[rank].append(local) or local * 2)
    calls = iter(zip(*gathered.values(), strict=True))
    own = contexts(index, lambda local: [item for part in next(calls) for item in part])
    assert list(own.texts) == found[index] and list(own.wrong) == wrong[index]
