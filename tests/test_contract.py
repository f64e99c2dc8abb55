"""What every method promises. A new line in the catalogue is tested here without a new test."""

import dataclasses
import math
import pathlib

import pytest
import torch
from torch.nn.functional import pad

import gear_rl.methods
from gear_rl.methods import METHODS, Shuffled, Uniform
from gear_rl.signals.signal import names_of
from gear_rl.signals.table import SIGNALS
from gear_rl.traits import distillation_of, is_additive, is_even, is_whole_batch, with_state
from gear_rl.types import CreditAssigner, TokenSignals, is_per_row

REWEIGHTING = [name for name, cls in METHODS.items() if not is_additive(cls())]
"""The others add to the advantage or distil: a sign may flip inside a completion."""

NAMES = dict.fromkeys([*SIGNALS, *(name for cls in METHODS.values() for name in names_of(cls().needs))])
"""Every signal of the table, and what a method needs besides."""
OFF = {
    "uniform": {},
    "gear": {"alpha": 0.0},
    "shuffled": {"of": Uniform()},
    "random_onsets": {"of": METHODS["gear"](alpha=0.0)},
    "serl": {"of": METHODS["rlsd"](strength=0.0)},
    "distilled_rl": {"clip_ratio": 1.0},
    "sc_grpo": {"of": METHODS["gear"](alpha=0.0)},
    "entropy_forks": {"top_share": 1.0},
    "sdpg": {"weight": 0.0, "anchor": "none"},
    "gigpo": {"turn_weight": 0.0},
    "mt_grpo": {"turn_weight": 0.0},
    "crpo": {"style": ()},
    "mixed": {"first": Uniform(), "second": Uniform()},
    "stare": {"weight": 1.0},
}
"""The settings at which a method gives GRPO back; a method with a setting ``strength`` does so at 0."""
COMPARES = {"entropy_forks": {"scope": "completion"}, "rlcsd": {"paths": "completion"}}
"""Methods that look at other completions by default, and the settings at which they do not."""

DEFAULTS = [cls() for cls in METHODS.values()]
SAMPLED = [METHODS[name](sampled=True) for name in ("opsd", "sdpo", "sdpg")]
"""Distillation as an advantage, in place of a term of the loss."""

every_method = pytest.mark.parametrize(
    "method", [*DEFAULTS, *SAMPLED], ids=[*METHODS, *(f"{method.name}, sampled" for method in SAMPLED)]
)
every_reweighting_method = pytest.mark.parametrize(
    "method", [METHODS[name]() for name in REWEIGHTING], ids=REWEIGHTING
)


def switched_off(name: str) -> CreditAssigner | None:
    """The method at the settings that give GRPO back; None where neither ``OFF`` nor ``strength`` says which."""
    fields = {field.name for field in dataclasses.fields(METHODS[name])}
    settings = OFF.get(name, {"strength": 0.0} if "strength" in fields else None)
    return None if settings is None else METHODS[name](**settings)


TAUGHT = [
    name for name, cls in METHODS.items() if {"divergence", "teacher_logprob"} & set(names_of(cls().needs))
]
CAN_BE_OFF = [name for name in METHODS if switched_off(name) is not None]


def made_up(mask: torch.Tensor, g: torch.Generator) -> dict[str, torch.Tensor]:
    """Every signal with values of its kind: nats, log-probabilities, shares, numbers of sentences."""
    B, T = mask.shape
    values = {name: torch.rand(B, T, generator=g) * 3 for name in NAMES if not is_per_row(name)}
    for name in ("student_logprob", "teacher_logprob", "reference_logprob"):
        values[name] *= -1
    for name in ("answer_confidence", "turn_reward", "step_score"):
        values[name] /= 3
    values["student_entropy"] /= 10
    for name, every in (("sentence_id", 3), ("line_id", 6), ("anchor_id", 4), ("step_id", 3)):
        values[name] = torch.where(mask, torch.arange(T) // every, -1)
    place, length = mask.cumsum(-1), mask.sum(-1, keepdim=True)
    region = torch.where(place == length, 2, torch.where(place > length - 3, 1, 0))
    values["answer_region"] = torch.where(mask, region, -1)
    values["token_id"] = torch.where(mask, torch.randint(150_000, (B, T), generator=g), -1)
    values["group_B"] = torch.zeros(B, dtype=torch.int64)
    values["rewards_BR"] = torch.rand(B, 2, generator=g)
    values["reward_B"] = values["rewards_BR"].sum(-1)
    values["success_B"] = (values["reward_B"] > 1).float()
    return values


def example(num_rows=7, num_tokens=13, seed=0) -> tuple[torch.Tensor, TokenSignals]:
    """Rows of no, one, two and many tokens, with tool output in the last three; both signs and a zero."""
    g = torch.Generator().manual_seed(seed)
    lengths = torch.tensor([0, 1, 2, 5, 11, 13, 13])[:num_rows]
    mask = torch.arange(num_tokens) < lengths[:, None]
    mask[-3:, 3:5] = False
    values = made_up(mask, g)
    values["group_B"] = torch.arange(num_rows) // 2
    advantage_B = torch.tensor([1.0, -1.5, 0.5, 2.0, -0.25, 0.0, 0.75])[:num_rows]
    return advantage_B, TokenSignals(mask=mask, **values)


def altered(signals: TokenSignals, change, change_rows=lambda x: x) -> TokenSignals:
    """The signals with every (B, T) tensor put through ``change``, and every other through ``change_rows``."""
    new = {name: change_rows(x) if is_per_row(name) else change(x) for name, x in signals.values.items()}
    return TokenSignals(mask=change(signals.mask), values=new)


def chosen(signals: TokenSignals, rows) -> TokenSignals:
    return altered(signals, lambda x: x[rows], lambda x: x[rows])


@every_method
def test_credit_is_finite_zero_on_masked_tokens_and_numbers_its_segments(method):
    """Also in rows of no token and of one."""
    advantage_B, signals = example()
    credit = method(advantage_B, signals)
    for values in (credit.advantage, credit.distill_weight):
        if values is not None:
            assert values.dtype == torch.float32 and not values.requires_grad
            assert values.isfinite().all() and (values[~signals.mask] == 0).all()
    assert (credit.distill_weight is None) == (distillation_of(method) is None)
    assert credit.distill_weight is None or (credit.distill_weight >= 0).all()
    assert credit.segment_id.dtype == torch.int64 and (credit.segment_id[~signals.mask] == -1).all()
    for row, advantage, mask in zip(credit.segment_id, credit.advantage, signals.mask, strict=True):
        ids = row[mask].tolist()
        assert sorted(ids) == ids and set(ids) == set(range(len(set(ids))))
        # A loss with one ratio for the completion relies on ``even``.
        assert not is_even(method) or len(set(advantage[mask].tolist())) <= 1


@every_method
@pytest.mark.parametrize(("num_rows", "num_tokens"), [(0, 5), (2, 0), (0, 0)])
def test_no_rows_and_no_columns_are_fine(method, num_rows, num_tokens):
    mask = torch.ones(num_rows, num_tokens, dtype=torch.bool)
    signals = TokenSignals(
        mask=mask, **(made_up(mask, torch.Generator()) | {"group_B": torch.arange(num_rows)})
    )
    credit = method(torch.ones(num_rows), signals)
    assert credit.advantage.shape == credit.segment_id.shape == (num_rows, num_tokens)


@every_method
def test_more_padding_changes_nothing(method):
    """Over many lengths: a sum may round differently where the row is longer, but nothing may depend on that."""
    g = torch.Generator().manual_seed(1)
    for num_tokens in range(3, 60):
        mask = torch.ones(2, num_tokens, dtype=torch.bool)
        signals = TokenSignals(mask=mask, **made_up(mask, g))
        advantage_B = torch.tensor([0.7, -1.2])
        credit = method(advantage_B, signals)
        padded = method(advantage_B, altered(signals, padded_on_the_right))
        torch.testing.assert_close(padded.advantage, pad(credit.advantage, (0, 5)))
        assert torch.equal(padded.segment_id, pad(credit.segment_id, (0, 5), value=-1))
        if credit.distill_weight is not None:
            torch.testing.assert_close(padded.distill_weight, pad(credit.distill_weight, (0, 5)))


def padded_on_the_right(x):
    return pad(x, (0, 5), value=-1 if x.dtype == torch.int64 else 0)


@every_method
@pytest.mark.parametrize("fill", [math.nan, math.inf, 1e6])
def test_what_a_masked_token_holds_changes_nothing(method, fill):
    advantage_B, signals = example()
    filled = altered(signals, lambda x: torch.where(signals.mask, x, fill) if x.is_floating_point() else x)
    credit, again = method(advantage_B, signals), method(advantage_B, filled)
    assert torch.equal(credit.advantage, again.advantage)
    assert torch.equal(credit.segment_id, again.segment_id)


@every_method
def test_other_completions_change_nothing(method):
    alone = dataclasses.replace(method, **COMPARES.get(method.name, {}))
    if is_whole_batch(alone) or any(map(is_per_row, names_of(alone.needs))):
        pytest.skip(f"{method.name} compares the completions of a group")
    advantage_B, signals = example()
    credit = alone(advantage_B, signals)
    for rows in ([6, 2, 0, 5, 1, 4, 3], [4, 5], *([row] for row in range(7))):
        other = alone(advantage_B[rows], chosen(signals, rows))
        torch.testing.assert_close(other.advantage, credit.advantage[rows])
        assert torch.equal(other.segment_id, credit.segment_id[rows])


@every_method
def test_reads_only_what_it_needs_and_says_which_signal_is_missing(method):
    advantage_B, signals = example()
    needed = names_of(method.needs)
    bare = TokenSignals(mask=signals.mask, values={name: signals.get(name) for name in needed})
    assert torch.equal(method(advantage_B, bare).advantage, method(advantage_B, signals).advantage)
    followed = set()
    with_state(method, {}, followed.add)
    for name in set(needed) - followed:
        with pytest.raises(ValueError, match=repr(name)):
            method(advantage_B, dataclasses.replace(signals, **{name: None}))


@every_method
def test_a_second_call_gives_the_same_whatever_the_global_seed_and_changes_no_signal(method):
    advantage_B, signals = example()
    copy_B, copies = advantage_B.clone(), altered(signals, torch.clone)
    torch.manual_seed(0)
    first, state = method(advantage_B, signals), torch.get_rng_state()
    torch.manual_seed(1)
    second = method(copy_B, copies)
    assert torch.equal(first.advantage, second.advantage)
    assert torch.equal(first.segment_id, second.segment_id)
    torch.manual_seed(0)
    assert torch.equal(torch.get_rng_state(), state)  # nor does a call draw from it
    assert torch.equal(advantage_B, example()[0])
    for name in ("mask", *NAMES):
        assert torch.equal(getattr(signals, name), getattr(example()[1], name))


@pytest.mark.parametrize("name", CAN_BE_OFF)
def test_switched_off_it_is_grpo_bit_for_bit(name):
    method = switched_off(name)
    assert method is not None
    advantage_B, signals = example()
    needed = names_of(method.needs)
    bare = TokenSignals(mask=signals.mask, values={signal: signals.get(signal) for signal in needed})
    credit = method(advantage_B, bare)
    assert torch.equal(credit.advantage, torch.where(signals.mask, advantage_B[:, None], 0.0))
    assert credit.distill_weight is None or not credit.distill_weight.any()
    assert distillation_of(method) is None
    assert not method.needs or name in ("gear", "shuffled", "random_onsets", "sc_grpo"), "no pass for nothing"


@pytest.mark.parametrize("name", TAUGHT)
def test_a_teacher_that_agrees_is_grpo_bit_for_bit(name):
    advantage_B, signals = example()
    agreed = dataclasses.replace(
        signals, teacher_logprob=signals.student_logprob, divergence=torch.zeros_like(signals.divergence)
    )
    alone = {"cast": {"equal_groups": False, "largest": 9.0}, "mixed": {"second": Uniform()}}
    method = METHODS[name](**alone.get(name, {}))
    credit = method(advantage_B, agreed)
    assert torch.equal(credit.advantage, torch.where(signals.mask, advantage_B[:, None], 0.0))


@every_method
def test_every_method_has_a_placebo_twin(method):
    """The same amounts in other places: what a completion gets in all, and how unequally, stays."""
    twin = Shuffled(of=method)
    assert set(twin.needs) == {*method.needs, "token_id"} and is_additive(twin) == is_additive(method)
    assert distillation_of(twin) == distillation_of(method)
    advantage_B, signals = example()
    credit, shuffled = method(advantage_B, signals), twin(advantage_B, signals)
    torch.testing.assert_close(shuffled.advantage.sort().values, credit.advantage.sort().values)
    assert (shuffled.advantage[~signals.mask] == 0).all()


@every_reweighting_method
def test_the_sign_of_the_advantage_is_kept_and_no_advantage_gives_none(method):
    advantage_B, signals = example()
    product = method(advantage_B, signals).advantage * advantage_B[:, None]
    assert (product >= 0).all()
    assert (method(torch.zeros(7), signals).advantage == 0).all()


@pytest.mark.parametrize("method", DEFAULTS, ids=list(METHODS))
def test_a_method_is_a_frozen_dataclass_of_the_catalogue(method):
    assert isinstance(method, CreditAssigner) and METHODS[method.name] is type(method) and method.source
    assert hash(method) == hash(type(method)()) and dataclasses.replace(method) == method
    for field in dataclasses.fields(method):
        assert f"{field.name}={getattr(method, field.name)!r}" in repr(method)
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(method, field.name, getattr(method, field.name))


def test_every_file_is_in_the_catalogue():
    files = {path.stem for path in pathlib.Path(gear_rl.methods.__file__).parent.glob("*.py")} - {"__init__"}
    listed = {cls.__module__.rsplit(".", 1)[-1] for cls in METHODS.values()}
    assert files <= listed, "METHODS in gear_rl/methods/__init__.py lacks the class of a file: add its line"
