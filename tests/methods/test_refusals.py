"""A setting that would train wrongly is refused, and the error names the setting."""

import dataclasses
import math
from typing import Literal, get_args, get_origin, get_type_hints

import pytest

from gear_rl.methods import METHODS, Crpo, Uniform
from methods.test_crpo import BASE, FOUR


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("gear", {"onset_rule": "quantile", "onset_threshold": 1.5}, "onset_threshold: 1.5 is a quantile"),
        ("gear", {"onset_floor_nats": -1e-9}, "onset_floor_nats: -1e-09"),
        ("gear", {"max_segment_tokens": 0}, "max_segment_tokens: 0; a segment has at least 1 token"),
        ("gear", {"end_rule": "fixed_length"}, "max_segment_tokens: end_rule='fixed_length' needs a length"),
        ("gear", {"clip": (0.0, 2.0)}, r"clip: \(0.0, 2.0\) must hold 1 between two positive numbers"),
        ("gear", {"clip": (1.1, 2.0)}, "clip: "),
        ("gear", {"clip": (0.5, 0.9)}, "clip: "),
        ("gear", {"clip": (0.5, math.inf)}, "clip: "),
        ("gear", {"entropy_norm": "log_vocab", "vocab_size": 1}, "vocab_size: 1; entropy_norm='log_vocab'"),
        (
            "gear",
            {"entropy_norm": "log_vocab", "vocab_size": 9, "end_signal": "student_varentropy"},
            "entropy_norm: 'log_vocab' is the scale of an entropy",
        ),
        (
            "gear",
            {"divergence": "forward", "estimator": "k3"},
            "divergence: 'forward' cannot be estimated by 'k3'.*set estimator to 'full'",
        ),
        ("gear", {"divergence": "jsd", "estimator": "abs_k1"}, "divergence: 'jsd' cannot be estimated"),
        ("rlsd", {"clip_width": 1.0}, "clip_width: 1.0 must be 0 or more, and below 1"),
        ("rlsd", {"clamp_nats": 0.0}, "clamp_nats: 0.0 must be above 0"),
        ("rlsd", {"clamp_nats": 100.0}, "clamp_nats: 100.0 must be .* at most 60"),
        ("rlsd", {"decay_steps": 0}, "decay_steps: 0; give 1 step or more, or None"),
        ("rlsd", {"warmup_steps": -1}, "warmup_steps: -1; give 0"),
        ("serl", {"of": Uniform()}, "of: 'uniform' is not rlsd"),
        ("serl", {"action_tokens": 0}, "action_tokens: 0; an action has 1 token or more, or None"),
        ("rlcsd", {"strength": 2.5}, "strength: 2.5 must be 0 to 2"),
        ("distilled_rl", {"clip_ratio": 0.999}, "clip_ratio: 0.999 must be a finite number, 1 or more"),
        ("entropy_forks", {"top_share": 0.0}, "top_share: 0.0 is not a share; give more than 0"),
        ("fixed_spans", {"span_tokens": 0}, "span_tokens: 0; a span has at least 1 token"),
        ("grail", {"mean": 0.1}, "mean: 0.1 must lie between min_weight, 0.5, and max_weight, 5.0"),
        ("shear", {"window_tokens": 0}, "window_tokens: 0"),
        ("gigpo", {"anchor_similarity": 0.0}, "anchor_similarity: 0.0"),
        ("gigpo", {"anchor_similarity": 1.5}, "anchor_similarity: 1.5"),
        (
            "igpo",
            {"baseline": "token", "compare": "rewards"},
            "baseline: 'token' is the first release's rule",
        ),
        ("igpo", {"baseline": "token", "discount": 0.5}, "baseline: 'token' is the first release's rule"),
        ("crpo", {"task": ()}, "task: empty; name at least one"),
        ("crpo", {"style": (1, -2)}, "style: -2 is no place of a reward function"),
        ("crpo", {"task": (0, 1)}, r"style: a reward function is listed twice in \(0, 1, 1\)"),
        ("crpo", {"style": (1, 1)}, r"style: a reward function is listed twice in \(0, 1, 1\)"),
        ("opsd", {"top_k": 0, "strength": 0.0}, "top_k: 0; give 1 or more"),
        ("sdpg", {"warmup_steps": -1}, "warmup_steps: -1; give 0 steps or more"),
        ("sdpg", {"decay_steps": -1}, "decay_steps: -1; give 0 steps or more"),
        ("sdpg", {"decay_steps": 3}, "total_steps: None, but the weight decays over the last 3 steps"),
        ("sdpg", {"decay_steps": 3, "total_steps": 0}, "total_steps: 0, but the weight decays"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_a_setting_outside_its_range_is_refused_by_name(name, settings, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        METHODS[name](**settings)


NUMBERS = [
    (name, field.name)
    for name, cls in METHODS.items()
    for field in dataclasses.fields(cls)
    if get_type_hints(cls)[field.name] in (float, float | None)
]


@pytest.mark.parametrize(("name", "field"), NUMBERS)
@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0])
@pytest.mark.usefixtures("unchecked")
def test_no_number_of_any_method_may_be_nan_infinite_or_negative(name, field, value):
    with pytest.raises(ValueError, match=f"^{field}: {value}|max_weight, {value}"):
        METHODS[name](**{field: value})


SHARES = """gear.aftermath rlsd.strength entropy_forks.top_share fixed_spans.strength oar_p.strength
oar_p.threshold oar_p.min_weight oar_g.strength oar_g.threshold oar_g.min_weight grail.strength shear.strength
gigpo.discount igpo.strength igpo.discount crpo.task_share opsd.strength sdpo.strength"""
POSITIVE = """rlcsd.squash_nats oar_g.noise_std gigpo.epsilon mt_grpo.epsilon igpo.epsilon crpo.epsilon
opsd.temperature sdpo.ratio_clip sdpg.max_nats"""


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [
        *((setting, 1.5, "1.5 is not a share; give ") for setting in SHARES.split()),
        *((setting, 0.0, "0.0 must be a finite number above 0") for setting in POSITIVE.split()),
        *((f"{name}.beta", 2.0, "2.0 must be 0 .* to 1") for name in ("opsd", "sdpo", "sdpg")),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_a_share_is_at_most_1_and_a_divisor_above_0(setting, value, message):
    name, field = setting.split(".")
    with pytest.raises(ValueError, match=f"^{field}: {message}"):
        METHODS[name](**{field: value})


CHOICES = [
    (name, field.name, get_args(get_type_hints(cls)[field.name]))
    for name, cls in METHODS.items()
    for field in dataclasses.fields(cls)
    if get_origin(get_type_hints(cls)[field.name]) is Literal
]


@pytest.mark.parametrize(("name", "field", "choices"), CHOICES)
@pytest.mark.usefixtures("unchecked")
def test_a_choice_that_does_not_exist_is_refused_by_name(name, field, choices):
    with pytest.raises(ValueError, match=f"^{field}: 'other' is not one of {', '.join(choices)}"):
        METHODS[name](**{field: "other"})


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (Crpo(style=(3,)), "style: no reward function 3; the run has 3, counted from 0"),
        (Crpo(task=(0, 7)), "task: no reward function 7; the run has 3"),
    ],
)
def test_a_reward_function_that_the_run_lacks_is_named(method, message):
    with pytest.raises(ValueError, match=message):
        method(BASE, FOUR)
