"""Which completions a method is shown, and with which it compares them."""

import dataclasses
import math

import pytest
import torch

import gear_rl.credit.step as credit_step
from engines.probing import BY_SIZE, Probe
from gear_rl.credit.contexts import contexts_of
from gear_rl.credit.credit_config import CreditConfig
from gear_rl.credit.siblings import credit_beside_siblings, finite_rows, leave_out_rows
from gear_rl.methods import Crpo, EntropyForks, Gigpo, Igpo, MtGrpo, Opsd, Rlcsd, Sdpg, Uniform
from gear_rl.rollouts import ToolUse
from gear_rl.signals.table import SIGNALS
from gear_rl.types import TokenSignals, is_per_row
from support.batches import Letters, PlacesEngine, PlainEngine, batch_of

TURNS = ["11011", "11011", "111", "11101", "1101011", "111", "11011", "11101"]
"""Two groups of four; 0 is what a tool answered."""
MASK = torch.tensor([[t == "1" for t in row.ljust(7, "0")] for row in TURNS])
REWARDS = [3.0, 0.0, 0.75, 1.5, 0.0, 2.5, 1.5, 1.0]
CALL, ANSWER = {"role": "assistant", "tool_calls": [{}]}, {"role": "tool", "name": "look", "content": "a"}
LAST = {"role": "assistant", "content": "so"}


def rollouts(answers=("is 3",) * 8, **changes):
    rewards = torch.tensor([math.nan if r is None else r for r in changes.get("rewards", REWARDS)])
    group = rewards.view(2, 4)
    base_B = (group - group.nanmean(1, keepdim=True)).nan_to_num(0.0).flatten()
    settings = {
        "advantage_B": base_B,
        "rewards": REWARDS,
        "rewards_BR": torch.stack([rewards.nan_to_num(0.0), torch.arange(8.0) % 3], -1),
        "group": [0] * 4 + [1] * 4,
        "prompts": [[{"role": "user", "content": "a"}]] * 8,
        "rows": [{"answer": answer} for answer in answers],
        "messages": [[CALL, ANSWER] * row.strip("0").count("01") + [LAST] for row in TURNS],
        "tools": ToolUse(counts=[{}] * 8, failure_of=lambda b, message: "raised" if b == 3 else None),
    }
    return batch_of(torch.where(MASK, 3, 4), MASK, **{**settings, **changes})


def passed(method, batch=None, **settings):
    """The batch, the result of the credit step, and what it logged."""
    batch, engine = rollouts() if batch is None else batch, PlacesEngine(Letters())
    own = {"teacher_model_kind": "live", "privileged_sources": ["row"], "teacher_contrast": "none"}
    config = CreditConfig(**{**own, **settings}).resolved(method)
    return batch, credit_step.step(batch, method, engine, config), engine.logged


def plain(batch):
    return torch.where(MASK, batch.advantage_B[:, None], 0.0)


def poisoning(monkeypatch, row: int, name: str, value: float = math.nan):
    """One number of a signal becomes ``value``."""
    collect = credit_step.collect

    def poisoned(*more):
        signals = collect(*more)
        x = getattr(signals, name).clone()
        x[(row,) if x.dim() == 1 else (row, 1)] = value
        return dataclasses.replace(signals, **{name: x})

    monkeypatch.setattr(credit_step, "collect", poisoned)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("student_entropy", math.nan),
        ("turn_reward", math.inf),
        ("reward_B", -math.inf),
        ("rewards_BR", math.nan),
    ],
)
def test_a_bad_number_reaches_its_own_completion_alone(monkeypatch, caplog, name, value):
    poisoning(monkeypatch, 1, name, value)
    probe = Probe(needs=(name, "group_B"), additive=True, bonus=0.5)
    batch, result, logged = passed(probe)
    [(advantage_B, signals)] = probe.shown
    others, advantage = [0, 2, 3, 4, 5, 6, 7], result.credit.advantage
    assert torch.equal(advantage[1], plain(batch)[1])
    assert torch.equal(advantage[others], (plain(batch) + 0.5 * MASK)[others])
    assert logged["gear/fallback/non_finite"] == 1.0
    assert "step 1: 1 completions had a NaN or Inf in a signal" in caplog.text
    # The method finds a completion without a token, in a group of its own.
    assert advantage_B.tolist() == [0.0 if b == 1 else a for b, a in enumerate(batch.advantage_B.tolist())]
    assert torch.equal(signals.mask, MASK & torch.tensor([[b != 1] for b in range(8)]))
    assert signals.group_B.tolist()[0] == 0 and signals.group_B.tolist().count(signals.group_B[1]) == 1
    assert not getattr(signals, name)[1].any() and getattr(signals, name).isfinite().all()
    assert (signals.turn_id[1] == -1).all()
    assert result.signals.get(name).isfinite().all() and not result.trusted_B[1]


def test_a_bad_number_where_the_advantage_is_0_reaches_no_sibling(monkeypatch):
    poisoning(monkeypatch, 1, "turn_reward")
    probe = Probe(needs=("group_B", "turn_reward"), bonus=0.5)
    _, result, logged = passed(probe, rollouts(rewards=[1.0, 0.5, 0.0, 0.5] * 2))
    [(_, signals)] = probe.shown
    assert signals.turn_reward.isfinite().all() and not signals.mask[1].any()
    assert logged["gear/fallback/non_finite"] == 0.0
    assert not result.credit.advantage[1].any() and result.credit.advantage[0].any()


@pytest.mark.parametrize(
    ("method", "why"),
    [
        (EntropyForks(scope="batch"), "not finite"),
        *(
            (method, "no context")
            for method in (Rlcsd(squash_nats=0.5, threshold=0.2), Igpo(), Igpo(baseline="token"))
        ),
        *((method, "no reward") for method in (Gigpo(), Crpo(), MtGrpo(), Igpo(), BY_SIZE)),
    ],
    ids=str,
)
def test_a_completion_that_falls_back_has_no_part_in_what_the_others_get(monkeypatch, method, why):
    """As if it were not there. TRL leaves a completion without a reward out of its group, too."""
    row, others = 2, [0, 1, 3, 4, 5, 6, 7]
    _, whole, _ = passed(method)
    if why == "not finite":
        poisoning(monkeypatch, row, "student_entropy")
    answers = ["is 3"] * 8
    changes = {}
    if why == "no context":
        answers[row] = ""
    if why == "no reward":
        changes["rewards"] = [None if b == row else reward for b, reward in enumerate(REWARDS)]
    batch, result, logged = passed(method, rollouts(answers, **changes))
    values = {name: x[others] for name, x in whole.signals.values.items()}
    alone = TokenSignals(mask=MASK[others], turn_id=whole.signals.turn_id[others], values=values)
    expected = method(batch.advantage_B[others], alone).advantage
    torch.testing.assert_close(result.credit.advantage[others], expected)
    assert torch.equal(result.credit.advantage[row], plain(batch)[row])
    every = method(batch.advantage_B, whole.signals).advantage
    assert (every[others] - expected).abs().max() > 1e-3, "else nothing is shown"
    assert logged["gear/fallbacks"] == (why != "no reward")


def test_where_no_completion_has_a_token_nothing_happens():
    empty = torch.zeros_like(MASK)
    for method in (Igpo(), Gigpo(), MtGrpo(), Sdpg(), Opsd()):
        completions = batch_of(torch.where(MASK, 3, 4), empty).completions
        batch = dataclasses.replace(rollouts(), completions=completions, messages=[[LAST]] * 8)
        _, result, logged = passed(method, batch)
        assert not result.credit.advantage.any()
        assert logged["gear/fallback/no_token"] == 8.0 and logged["gear/scored"] == 0.0


def test_a_method_without_signals_says_nothing_of_scored_completions():
    assert "gear/scored" not in passed(Uniform())[2] and "gear/scored" in passed(Gigpo())[2]


@pytest.mark.parametrize("additive", [False, True])
def test_only_an_additive_method_is_shown_completions_without_an_advantage(additive):
    """The second group has no spread."""
    probe = Probe(needs=("student_entropy",), additive=additive, bonus=0.5)
    batch, result, logged = passed(probe, rollouts(rewards=[*REWARDS[:4], *[1.0] * 4]))
    bonus = torch.where(MASK & ((batch.advantage_B != 0)[:, None] | additive), 0.5, 0.0)
    assert torch.equal(result.credit.advantage, plain(batch) + bonus)
    assert result.scored_B.tolist() == [True] * 4 + [additive] * 4
    assert logged["gear/scored"] == (8.0 if additive else 4.0)


def test_a_method_that_distils_must_say_what():
    @dataclasses.dataclass(frozen=True)
    class Distils(Probe):
        def __call__(self, advantage_B, signals):
            credit = super().__call__(advantage_B, signals)
            return dataclasses.replace(credit, distill_weight=signals.mask.float())

    with pytest.raises(ValueError, match="'probe' gives distill_weight, but has no `distillation`"):
        passed(Distils(needs=("student_entropy",), additive=True))


def test_the_first_tokens_of_a_turn_are_not_distilled():
    _, result, _ = passed(Opsd(strength=0.5), teacher_skip_first_tokens=2)
    kept = ["00000", "00000", "001", "00100", "0000000", "001", "00000", "00100"]
    assert result.credit.distill_weight.tolist() == [
        [0.5 * int(t) for t in row.ljust(7, "0")] for row in kept
    ]


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
            [[None, "a"], ["d", None]],
            [["b", None], [None, "c"]],
        ),
    ],
    ids=["shuffled", "sibling"],
)
def test_contexts_and_contrasts_keep_their_places_over_processes(index, settings, found, wrong):
    """Each process holds one group of two; rollouts a and d succeed."""
    rewards, config = [[1.0, 0.0], [0.0, 0.25]], CreditConfig(**settings)

    def contexts(rank, gather):
        batch = batch_of(
            torch.arange(1, 5).view(2, 2)[rank][:, None],
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
    assert list(own[1]) == found[index] and list(own[2]) == wrong[index]


def every_signal(num_rows=4, num_tokens=3):
    """All signals, of 1 everywhere; the last token of each row is masked."""
    mask = torch.tensor([[True, True, False]]).expand(num_rows, num_tokens)
    kinds = dict.fromkeys(
        ("group_B", "answer_region", "anchor_id", "sentence_id", "line_id", "token_id"), torch.int64
    )
    values = {name: torch.ones(num_rows, num_tokens, dtype=kinds.get(name)) for name in SIGNALS}
    values |= {
        name: torch.ones(num_rows, dtype=kinds.get(name)) for name in ("group_B", "reward_B", "success_B")
    }
    values["rewards_BR"] = torch.ones(num_rows, 2)
    return TokenSignals(mask=mask, turn_id=torch.where(mask, 0, -1), **values)


def floats(signals):
    return [name for name in SIGNALS if getattr(signals, name).is_floating_point()]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_row_is_finite_if_every_signal_is_where_it_counts(value):
    assert len(floats(every_signal())) == len(SIGNALS) - 6
    for name in floats(every_signal()):
        signals = every_signal()
        getattr(signals, name)[(1,) if name in ("reward_B", "success_B") else (1, 1)] = value
        if not is_per_row(name):
            getattr(signals, name)[2, 2] = value  # masked
        assert finite_rows(signals).tolist() == [True, False, True, True], name
    assert finite_rows(TokenSignals(mask=torch.ones(2, 0, dtype=torch.bool))).tolist() == [True, True]


def test_without_a_row_whole_numbers_keep_their_shape_and_kind():
    values = {"length_B": torch.tensor([4, 2]), "fork": torch.ones(2, 3, dtype=torch.bool)}
    signals = TokenSignals(mask=torch.ones(2, 3, dtype=torch.bool), values=values)
    found = leave_out_rows(signals, torch.tensor([True, False]), alone=1)
    assert found.get("length_B").tolist() == [-1, 2]
    assert found.get("fork").tolist() == [[False] * 3, [True] * 3]


def test_a_process_may_have_fewer_completions_than_another():
    """The other has three, which come first."""

    class Second(PlacesEngine):
        rank, world_size = 1, 2

        def gather(self, x):
            return torch.cat([x.new_zeros(3, *x.shape[1:]), x])

    signals = TokenSignals(mask=torch.ones(1, 2, dtype=torch.bool), group_B=torch.tensor([0]))
    credit = credit_beside_siblings(Probe(), torch.tensor([0.5]), signals, Second(Letters()), first=3)
    assert credit.advantage.tolist() == [[0.5, 0.5]]


def test_rewards_may_be_whole_numbers():
    whole = dataclasses.replace(rollouts(rewards=[1.0, -1.0] * 4), rewards=[1, -1] * 4)
    _, result, _ = passed(Gigpo(), whole)
    reward_B = result.signals.get("reward_B")
    assert reward_B.dtype == torch.float32 and reward_B.tolist() == [1.0, -1.0] * 4


def test_without_a_row_the_others_have_no_such_sibling():
    signals, absent_B = every_signal(), torch.tensor([False, True, False, True])
    signals.divergence[1] = math.nan
    found = leave_out_rows(signals, absent_B, alone=9)
    kept = [0, 2]
    for name in ("mask", "turn_id", *signals.values):
        assert torch.equal(getattr(found, name)[kept], getattr(signals, name)[kept])
    for name in ("mask", *floats(signals)):
        assert not getattr(found, name)[absent_B].any(), name
    for name in ("turn_id", "answer_region", "anchor_id", "sentence_id", "line_id", "token_id"):
        assert (getattr(found, name)[absent_B] == -1).all(), name
    assert found.group_B.tolist() == [1, 9, 1, 9]
    bare = leave_out_rows(TokenSignals(mask=signals.mask), absent_B, alone=9)
    assert torch.equal(bare.turn_id, found.turn_id) and torch.equal(bare.mask, found.mask) and not bare.values
