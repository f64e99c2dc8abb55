"""A setting that would train wrongly is refused, and the error names the setting."""

import dataclasses
import math
from typing import get_args, get_type_hints

import pytest

from gear_rl.credit.credit_config import CreditConfig
from gear_rl.methods import METHODS, Uniform
from gear_rl.traits import Distillation


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("gear", {"onset_rule": "quantile", "onset_threshold": 1.5}, "onset_threshold: 1.5 is a quantile"),
        (
            "gear",
            {"max_segment_tokens": 0},
            "max_segment_tokens: 0; give a whole number of 1 or more, or None",
        ),
        ("gear", {"clip": (0.0, 2.0)}, r"clip: \(0.0, 2.0\); give \[a number above 0, at most 1; a"),
        ("gear", {"entropy_norm": "log_vocab"}, "vocab_size: 0; entropy_norm='log_vocab' needs"),
        ("rlsd", {"clip_width": 1.0}, "clip_width: 1.0; give a number of 0 or more, below 1"),
        ("rlsd", {"decay_steps": 0}, "decay_steps: 0; give a whole number of 1 or more, or None"),
        ("rlsd", {"warmup_steps": -1}, "warmup_steps: -1; give a whole number of 0 or more"),
        ("serl", {"of": Uniform()}, r"of: Uniform\(\); give rlsd"),
        ("entropy_forks", {"top_share": 0.0}, "top_share: 0.0; give a number above 0, at most 1"),
        ("grail", {"mean": 0.1}, "mean: 0.1 must lie between min_weight, 0.5, and max_weight, 5.0"),
        ("shear", {"stride_tokens": 101}, "stride_tokens: 101 must be 1 to window_tokens"),
        ("gigpo", {"anchor_similarity": 1.5}, "anchor_similarity: 1.5"),
        ("igpo", {"baseline": "token", "discount": 0.5}, "baseline: 'token' is the first release's rule"),
        ("crpo", {"style": (1, -2)}, r"style: \(1, -2\); give \[a whole number of 0 or more; ...\]"),
        ("crpo", {"style": (1, 1)}, r"style: a reward function is listed twice in \(0, 1, 1\)"),
        ("crpo", {"task": []}, r"task: \[\]; give .* of length 1 or more"),
        ("sdpg", {"decay_steps": 3, "total_steps": 0}, "total_steps: 0, but the weight decays"),
        ("step_scores", {"use": "weights", "strength": 2.0}, "strength: 2.0; give 0 to 1 with use=weights"),
        ("step_scores", {"separator": ""}, "separator: ''; give text of length 1 or more"),
        ("step_scores", {"prm": "x", "steps": "spans"}, "steps: 'spans' come from a reward function"),
        ("step_scores", {"discount": 1.5}, "discount: 1.5; give a number from 0 to 1"),
        (Distillation, {"beta": -0.1}, "beta: -0.1; give a number from 0 to 1"),
        (Distillation, {"top_k": 0}, "top_k: 0; give a whole number of 1 or more, or None"),
        (Distillation, {"top_k_of": "both"}, "top_k_of: 'both'; give student or teacher"),
        (Distillation, {"anchor": "l2"}, "anchor: 'l2'; give none, urkl, ufkl, rkl or fkl"),
        (Distillation, {"anchor_weight": -1.0}, "anchor_weight: -1.0; give a number of 0 or more"),
        (CreditConfig, {"teacher_prompt": "shout"}, "teacher_prompt: 'shout'; give render or splice"),
        (CreditConfig, {"teacher_context_message": "2"}, "teacher_.*: '2'; give first or last, or None"),
        (
            CreditConfig,
            {"teacher_prompt": "splice", "teacher_prompt_template": "x"},
            ".*: 'x' lacks {privileged_context}",
        ),
        (CreditConfig, {"credit_batch_size": 0}, "credit_batch_size: 0; give a whole number of 1 or more"),
        (CreditConfig, {"teacher_update_rate": 1.5}, "teacher_.*: 1.5; give a number from 0 to 1, or None"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_a_setting_outside_its_range_is_refused_by_name(name, settings, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        METHODS.get(name, name)(**settings)


def test_the_bounds_of_a_distillation_are_taken():
    Distillation(beta=0.0, top_k=1, ratio_clip=None, max_nats=None, anchor="fkl", anchor_weight=0.0)


SETTINGS = [(name, field.name) for name, cls in METHODS.items() for field in dataclasses.fields(cls)]


@pytest.mark.parametrize(("name", "field"), SETTINGS)
def test_a_setting_of_another_type_is_refused_by_name(name, field):
    """Also true as a number, and text as a number or as true."""
    hint = get_type_hints(METHODS[name])[field]
    as_text = [] if str in (hint, *get_args(hint)) else ["False"]
    as_number = [True] if {int, float} & {hint, *get_args(hint)} else []
    for value in (object(), *as_text, *as_number):
        with pytest.raises(ValueError, match=f"^{field}: "):
            METHODS[name](**{field: value})


NUMBERS = [
    (name, field.name)
    for name, cls in METHODS.items()
    for field in dataclasses.fields(cls)
    if get_type_hints(cls)[field.name] in (float, float | None)
]


@pytest.mark.parametrize(("name", "field"), NUMBERS)
@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0])
def test_no_number_of_any_method_may_be_nan_infinite_or_negative(name, field, value):
    with pytest.raises(ValueError, match=f"^{field}: {value}|max_weight, {value}"):
        METHODS[name](**{field: value})


SHARES = """gear.aftermath rlsd.strength entropy_forks.top_share fixed_spans.strength oar_p.strength
oar_p.threshold oar_p.min_weight oar_g.strength oar_g.threshold oar_g.min_weight grail.strength shear.strength
gigpo.discount igpo.strength igpo.discount crpo.task_share opsd.strength sdpo.strength opsd.beta
sdpo.beta sdpg.beta"""
POSITIVE = """rlcsd.squash_nats oar_g.noise_std gigpo.epsilon mt_grpo.epsilon igpo.epsilon crpo.epsilon
opsd.temperature sdpo.ratio_clip sdpg.max_nats"""


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [
        *((setting, 1.5, "1.5; give a number .* 1$") for setting in SHARES.split()),
        *((setting, 0.0, "0.0; give a number above 0") for setting in POSITIVE.split()),
    ],
)
def test_a_share_is_at_most_1_and_a_divisor_above_0(setting, value, message):
    name, field = setting.split(".")
    with pytest.raises(ValueError, match=f"^{field}: {message}"):
        METHODS[name](**{field: value})
