"""The methods of a comparison, as they are written on a command line."""

import pytest

from gear_rl.errors import InputError
from gear_rl.lab.lineup import line_up, parse_method, parse_methods, split_methods
from gear_rl.method_builder import build_method
from gear_rl.methods import Gear, RandomOnsets


def test_a_list_of_methods_is_split_between_methods():
    assert parse_method("own=my.module:Method") == ("own", {"name": "my.module:Method"})
    assert parse_method("sft:sft=0.5")[1] == {"name": "uniform", "sft": 0.5}
    assert parse_method("own=gear:alpha=0.5") == ("own", {"name": "gear", "alpha": 0.5})
    blind = "blind=random_onsets:of.aligned=one,of.clip=[0.5, 2],seed=3"
    assert split_methods(f"{blind},rlsd") == [blind, "rlsd"]
    _, engine, own, _ = line_up(["gear*stare:teacher_model_kind=live,rollouts=24"])
    assert engine["gear*stare:teacher_model_kind=live,rollouts=24"]["teacher_model_kind"] == "live"
    assert own["gear*stare:teacher_model_kind=live,rollouts=24"] == {"rollouts": 24}
    placebo = build_method(parse_method(blind)[1])
    assert placebo == RandomOnsets(of=Gear(aligned="one", clip=(0.5, 2.0)), seed=3)
    for text in ("shuffled:of=opsd", "random_onsets:of.onset_rule=never"):
        with pytest.raises(InputError, match=f"--methods: {text} is no placebo"):
            line_up([text])
    with pytest.raises(InputError, match=r"'own' stands for .* rename one"):
        parse_methods(["own=rlsd:", "own=gear:"])
    for name in ("uniform", "oracle", "sft", "uniform@0.0001"):
        with pytest.raises(InputError, match=f"--methods: '{name}' is the name of a control; choose .* gear"):
            parse_methods([f"{name}=gear"])
    assert parse_methods(["uniform=uniform", "oracle"]).keys() == {"uniform", "oracle"}


@pytest.mark.parametrize(
    ("text", "methods"),
    [
        ("gear,mine=rlsd", ["gear", "mine=rlsd"]),
        ("a=gear,b=gear*stare", ["a=gear", "b=gear*stare"]),
        ("gear:alpha=2,mine=sft", ["gear:alpha=2", "mine=sft"]),
        ("shuffled:of.alpha=2,of=rlsd", ["shuffled:of.alpha=2,of=rlsd"]),
        ("gear:alpha=2,teacher_contrast=shuffled", ["gear:alpha=2,teacher_contrast=shuffled"]),
        ("a:Mine,width=3", ["a:Mine,width=3"]),
    ],
)
def test_a_part_that_names_a_method_begins_a_new_one(text, methods):
    assert split_methods(text) == methods


@pytest.mark.parametrize("text", ["=gear", "a=b=gear", "a,b=gear"])
def test_a_method_has_one_name(text):
    with pytest.raises(InputError, match="give one name without a comma"):
        parse_method(text)
