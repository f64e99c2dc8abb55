"""A setting that would train wrongly is refused, and the error names the setting."""

import dataclasses
import math
from typing import Literal, get_args, get_origin, get_type_hints

import pytest

from gear_rl.methods import METHODS, Crpo, Uniform
from methods.test_crpo import BASE, FOUR

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("gear", {"onset_threshold": -0.1}, "onset_threshold: -0.1 must be a finite number, 0 or more"),
        ("gear", {"onset_threshold": NAN}, "onset_threshold: nan"),
        ("gear", {"onset_rule": "quantile", "onset_threshold": 1.5}, "onset_threshold: 1.5 is a quantile"),
        ("gear", {"onset_floor_nats": -1e-9}, "onset_floor_nats: -1e-09"),
        ("gear", {"end_threshold": -1.0}, "end_threshold: -1.0"),
        ("gear", {"aftermath": 1.5}, "aftermath: 1.5 is not a share; give 0 to 1"),
        ("gear", {"alpha": -0.5}, "alpha: -0.5"),
        ("gear", {"alpha": INF}, "alpha: inf"),
        ("gear", {"max_segment_tokens": 0}, "max_segment_tokens: 0; a segment has at least 1 token"),
        ("gear", {"end_rule": "fixed_length"}, "max_segment_tokens: end_rule='fixed_length' needs a length"),
        ("gear", {"clip": (0.0, 2.0)}, r"clip: \(0.0, 2.0\) must hold 1 between two positive numbers"),
        ("gear", {"clip": (1.1, 2.0)}, "clip: "),
        ("gear", {"clip": (0.5, 0.9)}, "clip: "),
        ("gear", {"clip": (0.5, INF)}, "clip: "),
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
        ("rlsd", {"strength": 1.5}, "strength: 1.5 is not a share"),
        ("rlsd", {"strength": NAN}, "strength: nan is not a share"),
        ("rlsd", {"clip_width": 1.0}, "clip_width: 1.0 must be 0 or more, and below 1"),
        ("rlsd", {"clip_width": -0.1}, "clip_width: -0.1"),
        ("rlsd", {"clamp_nats": 0.0}, "clamp_nats: 0.0 must be above 0"),
        ("rlsd", {"clamp_nats": 100.0}, "clamp_nats: 100.0 must be .* at most 60"),
        ("rlsd", {"decay_steps": 0}, "decay_steps: 0; give 1 step or more, or None"),
        ("rlsd", {"warmup_steps": -1}, "warmup_steps: -1; give 0"),
        ("serl", {"of": Uniform()}, "of: 'uniform' is not rlsd"),
        ("serl", {"action_tokens": 0}, "action_tokens: 0; an action has 1 token or more, or None"),
        ("rlcsd", {"strength": -0.1}, "strength: -0.1 must be 0 to 2"),
        ("rlcsd", {"strength": 2.5}, "strength: 2.5 must be 0 to 2"),
        ("rlcsd", {"squash_nats": 0.0}, "squash_nats: 0.0 must be a finite number above 0"),
        ("rlcsd", {"threshold": -1.0}, "threshold: -1.0 must be a finite number, 0 or more"),
        ("rlcsd", {"modulated_share": INF}, "modulated_share: inf must be a finite number"),
        ("distilled_rl", {"clip_ratio": 0.999}, "clip_ratio: 0.999 must be a finite number, 1 or more"),
        ("distilled_rl", {"clip_ratio": INF}, "clip_ratio: inf"),
        ("entropy_forks", {"top_share": 0.0}, "top_share: 0.0 is not a share; give more than 0"),
        ("entropy_forks", {"top_share": 1.1}, "top_share: 1.1"),
        ("fixed_spans", {"span_tokens": 0}, "span_tokens: 0; a span has at least 1 token"),
        ("fixed_spans", {"strength": 1.1}, "strength: 1.1 is not a share"),
        ("oar_p", {"strength": 1.5}, "strength: 1.5 is not a share; give 0 to 1"),
        ("oar_p", {"threshold": -0.1}, "threshold: -0.1 is not a share"),
        ("oar_p", {"boost": -1.0}, "boost: -1.0 must be a finite number"),
        ("oar_p", {"min_weight": 2.0}, "min_weight: 2.0 is not a share"),
        ("oar_g", {"threshold": 1.5}, "threshold: 1.5 is not a share"),
        ("oar_g", {"noise_std": 0.0}, "noise_std: 0.0 must be a finite number above 0"),
        ("grail", {"strength": -0.5}, "strength: -0.5 is not a share"),
        ("grail", {"std": -0.5}, "std: -0.5 must be a finite number, 0 or more"),
        ("grail", {"min_weight": -0.1}, "min_weight: -0.1 must be 0 or more, and at most max_weight, 5.0"),
        ("grail", {"max_weight": INF}, "min_weight: 0.5 .* max_weight, inf"),
        ("grail", {"mean": 0.1}, "mean: 0.1 must lie between min_weight, 0.5, and max_weight, 5.0"),
        ("shear", {"strength": 1.5}, "strength: 1.5 is not a share; give 0 to 1"),
        ("shear", {"window_tokens": 0}, "window_tokens: 0"),
        ("gigpo", {"turn_weight": -0.5}, "turn_weight: -0.5 must be a finite number, 0 or more"),
        ("gigpo", {"discount": 1.5}, "discount: 1.5 is not a share"),
        ("gigpo", {"epsilon": 0.0}, "epsilon: 0.0 must be a finite number above 0"),
        ("gigpo", {"anchor_similarity": 0.0}, "anchor_similarity: 0.0"),
        ("mt_grpo", {"turn_weight": NAN}, "turn_weight: nan"),
        ("mt_grpo", {"epsilon": 0.0}, "epsilon: 0.0 must be a finite number above 0"),
        ("igpo", {"strength": 1.5}, "strength: 1.5 is not a share"),
        ("igpo", {"discount": -0.1}, "discount: -0.1 is not a share"),
        ("igpo", {"epsilon": 0.0}, "epsilon: 0.0 must be a finite number above 0"),
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
        ("crpo", {"task_share": 1.5}, "task_share: 1.5 is not a share"),
        ("crpo", {"epsilon": 0.0}, "epsilon: 0.0 must be a finite number above 0"),
        ("opsd", {"strength": -0.1}, "strength: -0.1 is not a share"),
        ("opsd", {"beta": 2.0}, "beta: 2.0 must be 0"),
        ("opsd", {"temperature": 0.0}, "temperature: 0.0 must be a finite number above 0"),
        ("opsd", {"top_k": 0, "strength": 0.0}, "top_k: 0; give 1 or more"),
        ("sdpo", {"strength": 1.5}, "strength: 1.5 is not a share"),
        ("sdpo", {"beta": -1.0}, "beta: -1.0 must be 0"),
        ("sdpo", {"ratio_clip": 0.0}, "ratio_clip: 0.0 must be a finite number above 0"),
        ("sdpg", {"weight": -1.0}, "weight: -1.0 must be a finite number, 0 or more"),
        ("sdpg", {"max_nats": 0.0}, "max_nats: 0.0 must be a finite number above 0"),
        ("sdpg", {"anchor_weight": -1.0}, "anchor_weight: -1.0 must be a finite number, 0 or more"),
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
