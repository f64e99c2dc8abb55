"""Which completions the TRL engine shows a method, and with which it compares them: those that have signals."""

import dataclasses
import logging
import math
from typing import Any

import pytest
import torch

import gear_rl.credit.step as engine
from engines import tiny
from engines.probing import REWARDS, SCRIPTS, Pass, Probe, Shop, passed, shop
from engines.scripted import END
from gear_rl import GEARConfig, GEARTrainer, Shuffled
from gear_rl.engines.trl.config import check_setup
from gear_rl.engines.trl.rollouts import Rollouts
from gear_rl.methods import METHODS, Crpo, EntropyForks, Gigpo, Igpo, MtGrpo, Opsd, Rlcsd, Sdpg
from gear_rl.signals.table import SIGNALS
from gear_rl.signals.turns import AnchorId, anchor_ids
from gear_rl.traits import distillation_of
from gear_rl.types import Signal, TokenSignals
from support.batches import PlainEngine
from test_contract import switched_off

FLOATS = [
    name
    for name in SIGNALS
    if not name.endswith("_id") and name not in ("group_B", "answer_region", "answer_occlusion")
]


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
    """The signals are collected as always, but for one number."""
    collect = engine.collect

    def poisoned(*more):
        signals = collect(*more)
        x = getattr(signals, name).clone()
        place = (row,) if x.dim() == 1 else (row, 1)
        x[place] = value
        return dataclasses.replace(signals, **{name: x})

    monkeypatch.setattr(engine, "collect", poisoned)


def rows_of(signals: TokenSignals, rows: list[int]) -> TokenSignals:
    values = {name: x[rows] for name, x in signals.values.items()}
    turn_id = None if signals.turn_id is None else signals.turn_id[rows]
    return TokenSignals(mask=signals.mask[rows], turn_id=turn_id, values=values)


def alone(method, found: Pass, signals: TokenSignals, rows: list[int]):
    """What the method gives these completions if there are no others."""
    return method(found.base_B[rows], rows_of(signals, rows)).advantage


def signals_of(desk, *needs: str | Signal) -> TokenSignals:
    return passed(desk, Probe(needs=needs, additive=True)).shown[1]


# --- a completion that falls back -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [*((name, math.nan) for name in FLOATS), ("turn_reward", math.inf), ("reward_B", -math.inf)],
)
def test_a_bad_number_in_any_signal_is_that_completions_own_affair(desk, monkeypatch, caplog, name, value):
    if name == "transport_distance":
        pytest.importorskip("ot")
    poisoning(monkeypatch, 1, name, value)
    found = passed(desk, Probe(needs=tuple({name: 1, "group_B": 1}), additive=True, bonus=0.5))
    advantage_B, signals = found.shown
    others = [0, 2, 3, 4, 5, 6, 7]
    assert torch.equal(found.advantage[1], found.plain[1])
    assert torch.equal(found.advantage[others], (found.plain + 0.5 * found.mask)[others])
    assert found.metrics["gear/fallback/non_finite"] == [1.0]
    assert "1 completions had a NaN or Inf in a signal" in caplog.text
    # The method finds a completion without a token, which is nobody's sibling.
    assert advantage_B.tolist() == [0.0 if b == 1 else a for b, a in enumerate(found.base_B.tolist())]
    assert torch.equal(signals.mask, found.mask & torch.tensor([[b != 1] for b in range(8)]))
    assert signals.group_B.tolist()[0] == 0 and signals.group_B.tolist().count(signals.group_B[1]) == 1
    assert not getattr(signals, name)[1].any() and (signals.turn_id[1] == -1).all()
    assert all(x.isfinite().all() for x in (getattr(signals, n) for n in (name,)))


def test_a_bad_number_where_the_advantage_is_0_reaches_nobody(desk, monkeypatch):
    """A reweighting method leaves the completion alone; its siblings must not be compared with NaN."""
    monkeypatch.setattr(desk, "judgement", [[1.0, 0.5, 0.0, 0.5] * 2, [0.0] * 8])
    poisoning(monkeypatch, 1, "turn_reward")
    found = passed(desk, Probe(needs=("group_B", "turn_reward"), bonus=0.5))
    assert found.base_B[1] == 0
    assert found.shown[1].turn_reward.isfinite().all() and not found.shown[1].mask[1].any()
    assert found.metrics["gear/fallback/non_finite"] == [0.0]
    assert not found.advantage[1].any() and found.advantage[0].any()


def test_what_an_environment_says_of_other_turns_than_there_are(desk, monkeypatch, caplog):
    """MT-GRPO, worked by hand, with three siblings in the first group: the second's rewards do not fit."""
    monkeypatch.setattr(Shop, "_tells", lambda self: [7.0] * 5 if self.seen == ["bb"] else None)
    with caplog.at_level(logging.WARNING, logger="gear_rl"):
        found = passed(desk, MtGrpo())
    assert "rollout 1 has 2 turns, but the environment's turn_rewards() gave 5" in caplog.text
    assert found.metrics["gear/fallback/non_finite"] == [1.0]
    assert torch.equal(found.advantage[1], found.plain[1])
    siblings, base_B = [0, 2, 3], found.base_B
    first = torch.tensor([1.0, 0.0, 0.0])  # the fourth rollout's call failed
    both = first + torch.tensor([2.0, 0.75, 1.5])
    first, both = ((x - x.mean()) / (x.std() + 1e-4) for x in (first, both))
    for i, b in enumerate(siblings):
        row, mask = found.advantage[b], found.mask[b]
        turn = found.probe.needs and (mask.long().diff(prepend=torch.zeros(1).long()) == 1).cumsum(-1)
        expected = torch.where(turn == 1, base_B[b] + first[i], base_B[b])
        expected = both[i].expand(mask.shape) if int(turn.max()) == 1 else expected
        torch.testing.assert_close(row, torch.where(mask, expected, 0.0))


# --- who is counted ---------------------------------------------------------------------------------------------


def test_an_entropy_that_is_not_known_has_no_part_in_the_quantile(desk, monkeypatch):
    signals = signals_of(desk, "student_entropy")
    method, others = EntropyForks(), [0, 1, 2, 3, 5, 6, 7]
    assert method.scope == "batch"
    poisoning(monkeypatch, 4, "student_entropy")
    found = passed(desk, method)
    assert torch.equal(found.advantage[others], alone(method, found, signals, others))
    every = alone(method, found, signals, [*range(8)])
    assert not torch.equal(every[others], found.advantage[others]), "else nothing is shown"
    assert torch.equal(found.advantage[4], found.plain[4])


def without_context_of(desk, monkeypatch, missing: int):
    """The privileged context comes from a function that has nothing for one rollout."""
    first = f"{SCRIPTS[missing][0].removesuffix(END)}"
    monkeypatch.setattr(desk.args, "privileged_sources", ["function"])
    monkeypatch.setattr(
        desk, "privileged", lambda row, rollout: None if rollout.text.startswith(first) else row["answer"]
    )


@pytest.mark.parametrize(
    "method", [Rlcsd(), Igpo(), Igpo(baseline="group"), Igpo(baseline="token")], ids=repr
)
def test_a_completion_without_context_has_no_part_in_what_the_others_get(desk, monkeypatch, method):
    needs = method.needs
    monkeypatch.setattr(desk.args, "privileged_sources", ["function"])
    monkeypatch.setattr(desk, "privileged", lambda row, rollout: row["answer"])
    signals = signals_of(desk, *needs)
    without_context_of(desk, monkeypatch, 2)
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
def test_what_nobody_judged_is_no_failure_among_siblings(desk, monkeypatch, method):
    """TRL leaves it out of its group; so does every method that reads rewards."""
    signals = signals_of(desk, *method.needs)
    unjudged = [[None if b == 2 else reward for b, reward in enumerate(row)] for row in REWARDS]
    monkeypatch.setattr(desk, "judgement", unjudged)
    found = passed(desk, method)
    others = [0, 1, 3, 4, 5, 6, 7]
    assert found.base_B[2] == 0 and not found.advantage[2].any()
    torch.testing.assert_close(found.advantage[others], alone(method, found, signals, others))
    assert found.metrics["gear/fallbacks"] == [0.0]


def test_an_infinite_reward_is_no_large_one(desk, monkeypatch):
    monkeypatch.setattr(desk, "judgement", [[math.inf, 0.0, 0.25, 1.0, *REWARDS[0][4:]], REWARDS[1]])
    method = Crpo()
    found = passed(desk, method)
    assert found.metrics["gear/fallback/non_finite"] == [1.0]
    assert torch.equal(found.advantage[0], found.plain[0])
    # Task rewards 0, 0.25, 1 and style rewards 0, 0.5, 0.5 of the three that are left.
    norm = [
        (x - x.mean()) / (x.std() + 1e-6)
        for x in (torch.tensor([0.0, 0.25, 1.0]), torch.tensor([0.0, 0.5, 0.5]))
    ]
    own = torch.stack([found.advantage[b][found.mask[b]][0] for b in (1, 2, 3)])
    torch.testing.assert_close(own, (norm[0] + norm[1]) / 2)


def test_a_weight_of_0_is_no_reward(desk, monkeypatch):
    monkeypatch.setattr(desk, "judgement", [REWARDS[0], [math.inf] * 8])
    monkeypatch.setattr(desk, "reward_weights", torch.tensor([1.0, 0.0]))
    signals = signals_of(desk, "rewards_BR", "reward_B")
    assert signals.rewards_BR[:, 1].tolist() == [0.0] * 8 and signals.reward_B.tolist() == REWARDS[0]


def test_where_no_completion_has_a_token_nothing_happens(desk, monkeypatch):
    monkeypatch.setattr(desk, "mask_truncated_completions", True)
    needs = tuple(name for name in SIGNALS if name not in ("answer_occlusion", "transport_distance"))
    found = passed(desk, Probe(needs=needs, additive=True, bonus=0.5))
    assert found.metrics["gear/fallback/no_token"] == [1.0], "the seventh was cut off"
    assert not found.advantage[6].any() and found.shown[1].group_B.tolist() == [0] * 4 + [1] * 4
    monkeypatch.setattr(desk, "scripts", [["cut off"]] * 8)
    for method in (Probe(needs=needs, additive=True), Igpo(), Gigpo(), MtGrpo(), Sdpg(), Opsd()):
        found = passed(desk, method)
        assert not found.mask.any() and not found.advantage.any()
        assert found.metrics["gear/fallback/no_token"] == [8.0] and found.metrics["gear/scored"] == [0.0]


# --- on the second of two processes -----------------------------------------------------------------------------


@pytest.mark.parametrize("rank", [0, 1])
def test_groups_and_anchors_are_numbered_over_all_processes(desk, monkeypatch, rank):
    """Eight siblings, four on each process; then groups of two, which no process shares."""
    found = passed(desk, Probe(needs=("anchor_id",), additive=True))

    def batch(index: int, size: int):
        part, rows = Rollouts(), slice(4 * index, 4 * index + 4)
        part.rows, part.prompts, part.messages = [{}] * 4, [""] * 4, desk.rollouts.messages[rows]
        part.ids, part.rewards, part.rewards_each = [[]] * 4, [0.0] * 8, torch.zeros(8, 1)
        output = {name: value[rows] for name, value in found.output.items() if name != "num_items_in_batch"}
        output["advantages"] = torch.zeros(4)
        return part.batch(output, step=0, group_size=size, rank=index)

    def anchors(index: int, size: int, gather: Any):
        alone = PlainEngine(desk.processing_class)
        alone.gather_objects = gather
        return AnchorId().compute(batch(index, size), alone)

    for size in (8, 2):
        assert batch(rank, size).group == [(4 * rank + b) // size for b in range(4)]
        everyone: list[Any] = []
        for index in (0, 1):
            anchors(index, size, lambda local, everyone=everyone: everyone.extend(local) or everyone)
        groups = [b // size for b in range(8)]
        assert [group for _, group in everyone] == groups
        value = anchors(rank, size, lambda local, everyone=everyone: everyone)
        whole = anchor_ids([texts for texts, _ in everyone], groups, found.mask)
        assert torch.equal(value, whole[4 * rank : 4 * rank + 4])


# --- the whole catalogue ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", METHODS)
def test_every_method_works_in_the_engine_and_switched_off_is_grpo(name, request):
    if name == "shear":
        pytest.importorskip("ot")
    # A forward for every token before the answer: short answers.
    trainer = request.getfixturevalue("plain" if name == "oar_p" else "desk")
    method, distils = METHODS[name](), distillation_of(METHODS[name]()) is not None
    found = passed(trainer, method)
    assert found.metrics["gear/fallbacks"] == [0.0]
    assert found.advantage.isfinite().all() and not found.advantage[~found.mask].any()
    if not distils or name in ("opsd", "sdpo", "sdpg"):
        assert torch.equal(found.advantage, found.plain) == (name in ("uniform", "sdpg"))
    assert ("gear_distill_weight" in found.output) == distils
    without = switched_off(name)
    if without is None:
        return
    off = passed(trainer, without)
    assert torch.equal(off.output["advantages"], off.base_B), "TRL's own tensor"
    assert "gear_distill_weight" not in off.output


@pytest.mark.parametrize(
    "of", [Igpo(), Gigpo(), Crpo(), Opsd(strength=0.5), Sdpg(weight=0.5)], ids=lambda m: m.name
)
def test_a_placebo_of_what_adds_or_distils(desk, monkeypatch, of):
    """The second group has no spread: what does not add would leave it alone."""
    monkeypatch.setattr(desk, "judgement", [[1.0, 0.0, 0.25, 1.0, *[1.0] * 4], REWARDS[1][:4] + [0.0] * 4])
    found, twin = passed(desk, of), passed(desk, Shuffled(of=of))
    for key, value in (
        ("advantage", found.advantage),
        ("gear_distill_weight", found.output.get("gear_distill_weight")),
    ):
        other = twin.advantage if key == "advantage" else twin.output.get(key)
        assert (value is None) == (other is None)
        if value is not None:
            torch.testing.assert_close(value.sort().values, other.sort().values)
    if of.name in ("igpo", "gigpo"):
        assert not torch.equal(found.advantage, twin.advantage)
    assert twin.metrics["gear/fallbacks"] == [0.0] and twin.metrics["gear/scored"] == [8.0]


# --- the teacher's settings, for methods that distil ------------------------------------------------------------


def test_the_first_tokens_of_a_turn_are_not_distilled(desk):
    found = passed(desk, Opsd(strength=0.5), teacher_skip_first_tokens=3)
    weight, mask = found.output["gear_distill_weight"], found.mask
    opens = (mask.long().diff(prepend=torch.zeros(8, 1).long(), dim=-1) == 1).long()
    skipped = mask & ((opens + opens.roll(1, -1) + opens.roll(2, -1)) > 0)
    assert torch.equal(weight, torch.where(mask & ~skipped, 0.5, 0.0))
    assert skipped.sum(-1).tolist() == [6, 6, 3, 6, 9, 3, 6, 6]


def test_a_contrast_is_not_asked_of_what_is_not_contrasted(desk, monkeypatch):
    """No rollout of the second group failed: it has no wrong context, and does not need one."""
    monkeypatch.setattr(desk, "judgement", [[1.0, 0.0, 0.25, 1.0, 2.0, 1.0, 1.5, 1.0], [0.0] * 8])
    for method, missing in ((Opsd(), 0.0), (Igpo(), 0.0), (Rlcsd(), 4.0)):
        found = passed(desk, method, teacher_contrast="sibling")
        assert found.metrics["gear/fallback/no_context"] == [missing], method.name


# --- misuse -----------------------------------------------------------------------------------------------------


def test_a_batch_that_tears_groups_apart_is_refused_where_siblings_are_compared(tmp_path):
    probe = Probe(needs=("transport_distance",))
    args = GEARConfig(**tiny.settings(tmp_path)).resolved(probe)
    args.per_device_train_batch_size, args.steps_per_generation = 3, 2
    with pytest.raises(
        ValueError, match=r"per_device_train_batch_size: 6 completions per process .* \(4\), but 'probe'"
    ):
        check_setup(probe, args, num_generations=4)
    check_setup(probe, args, num_generations=3)
    check_setup(Probe(needs=("group_B", "reward_B")), args, num_generations=4)


def test_no_copy_of_the_first_weights_where_they_are_partitioned(tmp_path):
    reads = Probe(needs=("reference_logprob",))
    args = GEARConfig(**tiny.settings(tmp_path, teacher_model_kind="live")).resolved(reads)

    def check(probe, sharding, peft=False):
        check_setup(probe, args, num_generations=4, sharding=sharding, peft=peft)

    with pytest.raises(ValueError, match=r"'probe' needs reference_logprob.* never run under DEEPSPEED"):
        check(reads, "DEEPSPEED")
    check(reads, "DEEPSPEED", peft=True)
    check(Probe(), "DEEPSPEED")
    for sharding in ("FSDP", "MULTI_GPU"):
        check(reads, sharding)


def test_images_are_refused_where_the_model_is_asked(tiny_model, tmp_path):
    class Sees(GEARTrainer):
        """Once it is set up, TRL says that it has a processor of images."""

        _is_vlm = property(lambda self: hasattr(self, "control_tokens"), lambda self, value: None)

    def made(credit):
        args = GEARConfig(**tiny.settings(tmp_path))
        return Sees(tiny_model, tiny.vowels, args, tiny.rows(), credit=credit)

    for credit in (Igpo(), Opsd(), Sdpg(), Rlcsd()):
        with pytest.raises(
            ValueError, match=f"images cannot be scored yet, and '{credit.name}' needs passes"
        ):
            made(credit)
    for credit in (Crpo(), MtGrpo(), Opsd(strength=0.0)):
        assert made(credit).credit == credit, "no pass of the model"


def test_weights_to_distil_by_without_a_term_are_refused(desk):
    @dataclasses.dataclass(frozen=True)
    class Distils(Probe):
        def __call__(self, advantage_B, signals):
            credit = super().__call__(advantage_B, signals)
            return dataclasses.replace(credit, distill_weight=signals.mask.float())

    with pytest.raises(ValueError, match="'probe' gives distill_weight, but has no `distillation`"):
        passed(desk, Distils(needs=("student_entropy",), additive=True))
