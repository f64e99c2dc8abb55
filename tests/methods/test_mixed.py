"""Two methods at once: by hand, by their text, and what cannot be mixed."""

import pytest
import torch

from gear_rl.method_builder import build_method
from gear_rl.methods import (
    Cast,
    EntropyForks,
    Gear,
    Gigpo,
    Mixed,
    Opsd,
    Rlcsd,
    Rlsd,
    Sdpo,
    Shuffled,
    Stare,
    StepScores,
    Uniform,
)
from gear_rl.traits import distillation_of, engine_settings_of, is_additive
from gear_rl.types import TokenSignals

MASK = torch.tensor([[True, True, False, True]])
SIGNALS = TokenSignals(
    mask=MASK,
    student_logprob=torch.tensor([[-1.0, -1.0, 0.0, -1.0]]),
    teacher_logprob=torch.tensor([[-0.1, -1.0, 0.0, -3.0]]),
    student_entropy=torch.full((1, 4), 0.1),
)


def test_a_product_of_weights_has_the_product_of_their_means():
    # RLSD's weights are 1.1, 1, 0.9; STARE's 2, 1, 1 on the most surprising of equals, so on all: use its share.
    one, other = Rlsd(), Stare(weight=2.0)
    weights = [
        (a / 2.0) * (b / 2.0)
        for a, b in zip(
            *(m(torch.tensor([2.0]), SIGNALS).advantage[MASK].tolist() for m in (one, other)), strict=True
        )
    ]
    expected = [2.0 * 2.0 * w / (sum(weights) / 3) for w in weights]
    credit = Mixed(first=one, second=other)(torch.tensor([2.0]), SIGNALS)
    assert credit.advantage[MASK].tolist() == pytest.approx(expected)
    assert credit.advantage[MASK].mean().item() == pytest.approx(4.0), "STARE's mean is 2 here"
    assert credit.segment_id.tolist() == [[0, 1, -1, 2]]
    assert not Mixed(first=one, second=other)(torch.tensor([0.0]), SIGNALS).advantage.any()


def test_a_neutral_factor_changes_nothing():
    """Forks keep one token of four here: scaled to mean 1 it would have four times GRPO's advantage."""
    signals = TokenSignals(
        mask=torch.ones(2, 4, dtype=torch.bool),
        student_entropy=torch.tensor([[0.1, 2.0, 0.2, 0.3], [0.1, 0.1, 0.1, 0.1]]),
    )
    forks, advantage_B = EntropyForks(top_share=0.125), torch.tensor([1.0, -1.0])
    credit = Mixed(first=forks, second=Uniform())(advantage_B, signals)
    assert (
        credit.advantage.tolist() == forks(advantage_B, signals).advantage.tolist() == [[0, 1, 0, 0], [0] * 4]
    )


def test_a_sum_weighs_advantages_and_what_is_distilled():
    mixed = build_method("uniform+opsd:strength=0.5")
    credit = mixed(torch.tensor([2.0]), SIGNALS)
    assert credit.advantage.tolist() == [[1.5, 1.5, 0.0, 1.5]]
    assert credit.distill_weight.tolist() == [[0.25, 0.25, 0.0, 0.25]]
    assert distillation_of(mixed) == Opsd(strength=0.5).distillation and is_additive(mixed)
    assert engine_settings_of(mixed) == {"teacher_model_kind": "base"}


def test_the_text_names_methods_and_their_settings():
    read = build_method
    assert read("gear:tokens*rlsd:strength=1") == Mixed(
        first=Gear(onset_rule="never"), second=Rlsd(strength=1)
    )
    three = read("uniform+rlsd+sdpo")
    assert three == Mixed(
        first=Uniform(),
        second=Mixed(first=Rlsd(), second=Sdpo(), how="sum", share=0.5),
        how="sum",
        share=1 / 3,
    )
    assert read("uniform+gear*stare") == Mixed(
        first=Uniform(), second=Mixed(first=Gear(), second=Stare()), how="sum"
    )
    assert read("gear*stare+uniform").first == Mixed(first=Gear(), second=Stare())
    assert read("shuffled:of=gear:tokens").of == Gear(onset_rule="never")
    assert read("uniform + gear * stare") == read("uniform+gear*stare")
    assert read("shuffled:of=gear:tokens*stare").of == read("gear:tokens*stare")
    assert read("shuffled:of=gear:alpha=0.5*stare").of == read("gear:alpha=0.5*stare")
    assert read("shuffled:of=gear,of.alpha=1").of == Gear(alpha=1)
    assert read("sc_grpo:of.alpha=2").of == Gear(onset_rule="never", alpha=2), "beside its own setting"
    assert read("shuffled:of=rlsd,seed=3*stare") == Mixed(first=Shuffled(of=Rlsd(), seed=3), second=Stare())
    assert read('step_scores:steps=separator,separator=", ",strength=2').separator == ", "
    assert read("gear:onset_floor_nats=1e+3").onset_floor_nats == 1000
    assert read("rlsd:negative_only=False,decay_steps= None") == Rlsd(negative_only=False, decay_steps=None)


def test_what_cannot_be_mixed_is_named():
    with pytest.raises(ValueError, match="how: 'product' multiplies weights, and 'gigpo' adds"):
        Mixed(first=Gear(), second=Gigpo())
    with pytest.raises(
        ValueError, match=r"needs: StepId.*'turns'.* and StepId.*'tokens'.* are one signal at two settings"
    ):
        Mixed(first=StepScores(steps="tokens"), second=StepScores(), how="sum")
    with pytest.raises(ValueError, match="second: 'sdpo' distils, and so does 'opsd'"):
        Mixed(first=Opsd(), second=Sdpo(), how="sum")
    with pytest.raises(ValueError, match="second: one of 'gear' and 'rlcsd' contrasts two teachers"):
        Mixed(first=Gear(), second=Rlcsd(), how="sum")
    with pytest.raises(ValueError, match="second: one of 'opsd' and 'rlcsd' contrasts two teachers"):
        Mixed(first=Opsd(), second=Rlcsd(), how="sum")
    assert Mixed(first=Uniform(), second=Rlcsd(), how="sum").engine_settings["teacher_contrast"] == "sibling"


def test_the_contexts_are_those_of_the_first_teacher():
    published = {"teacher_model_kind": "base", "privileged_sources": ["prompt"]}
    assert engine_settings_of(Mixed(first=Gear(), second=Cast(), how="sum")) == {"teacher_model_kind": "base"}
    assert engine_settings_of(Mixed(first=Cast(), second=Gear(), how="sum")) == published
    assert engine_settings_of(Mixed(first=Uniform(), second=Cast(), how="sum")) == published


def test_both_follow_the_steps():
    assert Mixed(second=Rlsd()).at_step(25).second.strength == 0.25
