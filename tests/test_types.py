"""The central types refuse wrong shapes and settings, each with one sentence."""

import copy
import dataclasses

import pytest
import torch

from gear_rl.methods import METHODS, Gear, Igpo, Opsd, Sdpg, Shuffled
from gear_rl.signals.table import signals_of
from gear_rl.traits import distillation_of, is_additive
from gear_rl.types import Credit, TokenSignals, is_per_row

MASK = torch.tensor([[True, True, False], [True, False, False]])


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    "name", ["turn_id", "one_of_ones_own", "token_BLEU", "divergence", "reward_B", "rewards_BR"]
)
def test_a_signal_has_the_masks_shape_or_one_entry_for_each_completion(name):
    shapes = {"rewards_BR": [(2, 5), (3, 5), (2,), (2, 3, 1)], "reward_B": [(2,), (3,), (2, 3), ()]}
    fits, *wrong = shapes.get(name, [(2, 3), (3, 3), (2, 4), (2,), ()])
    right = torch.zeros(fits)
    assert getattr(TokenSignals(mask=MASK, **{name: right}), name) is right
    for shape in wrong:
        kind = "completion" if is_per_row(name) else "completion token"
        with pytest.raises(
            ValueError, match=rf"^{name}: shape .* has shape \(2, 3\); give one number per {kind}$"
        ):
            TokenSignals(mask=MASK, **{name: torch.zeros(shape)})
    with pytest.raises(ValueError, match=f"^{name} carries a gradient"):
        TokenSignals(mask=MASK, **{name: right.clone().requires_grad_()})


def test_a_signal_is_there_or_is_named():
    signals = TokenSignals(mask=MASK, reward_B=torch.tensor([1.0, 2.0]))
    assert signals.get("reward_B").tolist() == [1.0, 2.0]
    assert "reward_B" in signals and "divergence" not in signals
    absent = "signal 'divergence' was not computed; list it in `needs`, or give"
    with pytest.raises(ValueError, match=absent):
        signals.get("divergence")
    with pytest.raises(AttributeError, match=absent):
        _ = signals.divergence
    changed = dataclasses.replace(signals, reward_B=None, divergence=torch.zeros(2, 3))
    assert [*changed.values] == ["divergence"] and torch.equal(copy.deepcopy(changed).mask, MASK)
    for name in ("mask", "turn_id", "entropy"):
        with pytest.raises(
            ValueError, match=f"no signal is called '{name}'; the signals are student_logprob, "
        ):
            signals_of([name])
    with pytest.raises(ValueError, match="needs: 'divergence' is a text; give a tuple of names"):
        signals_of("divergence")


@pytest.mark.usefixtures("unchecked")
def test_credit_is_a_constant_of_one_shape():
    advantage, ids = torch.zeros(2, 3), torch.zeros(2, 3, dtype=torch.long)
    for name in ("segment_id", "distill_weight"):
        given = {"segment_id": ids, name: torch.zeros(2)}
        with pytest.raises(ValueError, match=rf"^{name}: shape \(2,\), but advantage has shape \(2, 3\)"):
            Credit(advantage=advantage, **given)
    with pytest.raises(ValueError, match="advantage carries a gradient"):
        Credit(advantage=advantage.clone().requires_grad_(), segment_id=ids)


def test_falling_back_by_hand():
    credit = Credit(
        advantage=torch.tensor([[4.0, 0.0, 0.0], [9.0, 0.0, 0.0]]),
        segment_id=torch.tensor([[0, 1, -1], [0, -1, -1]]),
        distill_weight=torch.tensor([[0.5, 0.5, 0.0], [0.25, 0.0, 0.0]]),
    )
    found = credit.falling_back(torch.tensor([True, False]), torch.tensor([2.0, 3.0]), MASK)
    assert found.advantage.tolist() == [[2.0, 2.0, 0.0], [9.0, 0.0, 0.0]]
    assert found.segment_id.tolist() == [[0, 0, -1], [0, -1, -1]]
    assert found.distill_weight is not None
    assert found.distill_weight.tolist() == [[0.0, 0.0, 0.0], [0.25, 0.0, 0.0]]
    bare = dataclasses.replace(credit, distill_weight=None)
    assert bare.falling_back(torch.tensor([True, True]), torch.zeros(2), MASK).distill_weight is None


def test_methods_that_add_or_distil_need_signals_of_every_completion():
    adds = {
        "antisd",
        "cast",
        "gigpo",
        "mt_grpo",
        "igpo",
        "step_scores",
        "crpo",
        "raft",
        "opsd",
        "sdpo",
        "sdpg",
    }
    assert {name for name in METHODS if is_additive(METHODS[name]())} == adds
    assert not is_additive(Opsd(strength=0.0)) and distillation_of(Opsd(strength=0.0)) is None
    assert is_additive(Sdpg(weight=0.0)), "its anchor is left"
    assert is_additive(Shuffled(of=Igpo())) and not is_additive(Shuffled(of=Gear()))
