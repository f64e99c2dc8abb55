"""Distances from hidden states at hand: by hand, and against the loop over one pair of windows at a time."""

import math
import weakref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

import gear_rl.signals.transport
from gear_rl.signals.transport import token_distances, window_starts
from methods.completions import PROPERTY

ot = pytest.importorskip("ot", reason="POT is an extra: pip install 'gear-rl[shear]'")
from signals.transport_loop import agree, by_loop, exact, random_states, windows_of  # noqa: E402  it needs POT

LENGTHS = [3, 11, 1, 7, 4]
RIGHT = [True, False, True, False, False]


# by hand


def test_the_nearest_window_of_the_others_and_the_farthest_window_of_the_token():
    # On a line a plan of least cost keeps the order. Windows of two: {1, 2}, {2, 4} against {3, 5}:
    # (2 + 3) / 2 = 2.5 and (1 + 1) / 2 = 1. The mean length is (1 + 2 + 4 + 3 + 5) / 5 = 3.
    right, wrong = torch.tensor([[1.0], [2.0], [4.0]]), torch.tensor([[3.0], [5.0]])
    found = token_distances(
        [right, wrong], [True, False], window_tokens=2, stride_tokens=1, regularisation=0.002, iterations=2000
    )
    # The token between two windows takes the farther one; the other completion has the nearer one.
    agree(found, [torch.tensor([2.5, 2.5, 1.0]) / 3, torch.tensor([1.0, 1.0]) / 3], 1e-3)


@pytest.mark.parametrize("size", [1.0, 7.0])
@pytest.mark.parametrize("regularisation", [1.0, 0.5])
def test_the_cost_of_a_regularised_plan_in_closed_form(size, regularisation):
    # Two places against the same two, c = sqrt(2) mean lengths apart: the plan is symmetric, and the share that
    # moves is e^(-c/r) / (1 + e^(-c/r)), so the cost is c / (1 + e^(c/r)).
    # For r = 1: 1.41421 / 5.11325 = 0.27658.
    c = math.sqrt(2)
    expected = c / (1 + math.exp(c / regularisation))
    assert regularisation != 1.0 or expected == pytest.approx(0.27658, abs=1e-5)
    places = size * torch.eye(2)
    found = token_distances([places, places], [False, True], regularisation=regularisation)
    agree(found, [torch.full((2,), expected)] * 2, 1e-6)


def test_a_stray_token_weighs_more_in_a_shorter_window():
    # Unequal masses: three at 1, 1, 4 against two at 1, 1. One third moves by 3: 1. Mean length 8 / 5.
    states = [torch.tensor([[1.0], [1.0], [4.0]]), torch.tensor([[1.0], [1.0]])]
    found = token_distances(states, [True, False], regularisation=0.01, iterations=2000)
    agree(found, [torch.full((3,), 1 / 1.6), torch.full((2,), 1 / 1.6)], 1e-4)


# against the loop


@pytest.mark.parametrize("max_mb", [1e-6, 0.02, 64.0], ids=["one pair", "small tiles", "one tile"])
@pytest.mark.parametrize(("window", "stride"), [(4, 3), (4, 1), (5, 5), (100, 25), (1, 1)])
def test_agrees_with_one_pair_of_windows_at_a_time(window, stride, max_mb):
    states = random_states(LENGTHS)
    found = token_distances(
        states,
        RIGHT,
        window_tokens=window,
        stride_tokens=stride,
        regularisation=0.1,
        max_mb=max_mb,
        iterations=1000,
    )
    agree(found, by_loop(states, RIGHT, window, stride, 0.1))


@settings(PROPERTY, max_examples=40)
@given(
    st.lists(st.integers(1, 9), min_size=2, max_size=4),
    st.integers(1, 4),
    st.integers(0, 3),
    st.integers(0, 2**4 - 2),
    st.integers(0, 99),
)
def test_agrees_with_the_loop_for_every_group(lengths, stride, wider, outcomes, seed):
    right = [bool(outcomes >> i & 1) for i in range(len(lengths))]
    states = random_states(lengths, seed=seed, num_dims=3)
    found = token_distances(
        states, right, window_tokens=stride + wider, stride_tokens=stride, regularisation=0.2, iterations=500
    )
    agree(found, by_loop(states, right, stride + wider, stride, 0.2))


def test_with_little_regularisation_it_is_the_exact_distance():
    states = random_states(LENGTHS, spread=0.3)
    found = token_distances(
        states, RIGHT, window_tokens=4, stride_tokens=3, regularisation=0.003, iterations=8000
    )
    expected = by_loop(states, RIGHT, 4, 3, None, exact)
    agree(found, expected, 2e-3)
    for value, least in zip(found, expected, strict=True):
        assert (value >= least.float() - 1e-4).all(), "no plan costs less than the best"


def test_the_default_number_of_iterations_is_enough():
    """In a plane, where it takes long: 30 would be 8 percent off."""
    states = random_states([40, 30, 50], num_dims=2, spread=0.0)
    right = [True, False, False]
    few, many = token_distances(states, right), token_distances(states, right, iterations=5000)
    for value, limit in zip(few, many, strict=True):
        torch.testing.assert_close(value, limit, atol=0, rtol=2e-3)


def test_equal_states_are_no_distance_apart():
    """In float32 the product of two matrices sees them 0.0003 apart; more than 25 rows take that way."""
    g = torch.Generator().manual_seed(3)
    # Far from each other, so that at this regularisation each goes to its twin.
    states = torch.nn.functional.normalize(torch.randn(40, 64, generator=g), dim=-1)
    for value in token_distances([states, states.flip(0)], [True, False]):
        assert value.max() < 1e-5


@pytest.mark.parametrize("iterations", [1, 2, 5])
@pytest.mark.parametrize("right", [RIGHT, [not r for r in RIGHT]], ids=["short rows", "short columns"])
def test_neither_tiles_nor_padding_change_anything_long_before_convergence(iterations, right):
    states = random_states([2, 11, 4, 7, 4])
    options = {"window_tokens": 4, "stride_tokens": 3, "iterations": iterations}
    alone = token_distances(states, right, max_mb=1e-6, **options)
    agree(token_distances(states, right, max_mb=64.0, **options), alone, 1e-5)


def test_other_completions_of_the_batch_of_problems_change_nothing():
    """Among problems that converge at once and ones that never do: a tolerance would stop them together."""
    easy, hard = random_states([4, 4]), [1000 * s for s in random_states([4, 4], seed=1)]
    options = {"regularisation": 0.01, "iterations": 37}
    alone = token_distances(easy, [True, False], **options)
    far = [easy[0], easy[1], hard[1]]
    lengths = [torch.cat(states).norm(dim=-1).mean() for states in (easy, far)]
    # In one unit of length for both calls, or the regularisation would differ.
    options["regularisation"] = float(0.01 * lengths[0] / lengths[1])
    together = token_distances(far, [True, False, False], **options)
    torch.testing.assert_close(together[1] * lengths[1], alone[1] * lengths[0], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("max_mb", [1e-6, 64.0])
def test_the_order_of_completions_does_not_matter(max_mb):
    states, order = random_states(LENGTHS), [3, 0, 4, 2, 1]
    options = {"window_tokens": 4, "stride_tokens": 3, "max_mb": max_mb}
    found = token_distances(states, RIGHT, **options)
    again = token_distances([states[i] for i in order], [RIGHT[i] for i in order], **options)
    agree(again, [found[i] for i in order], 1e-5)


def test_one_outcome_and_zeros():
    states = random_states([3, 2])
    assert all((value == 0).all() for value in token_distances(states, [True, True]))
    assert token_distances([], []) == []
    nothing = token_distances([torch.zeros(3, 4), torch.zeros(2, 4)], [True, False])
    assert all((value == 0).all() for value in nothing)


def test_with_and_without_logarithms_it_is_the_same_distance(monkeypatch):
    methods = []
    inner = ot.batch.solve_batch

    def noting(*args, **kwargs):
        methods.append(kwargs["method"])
        return inner(*args, **kwargs)

    monkeypatch.setattr(ot.batch, "solve_batch", noting)
    states, right = random_states([12, 12, 12]), [True, False, False]
    options = {"window_tokens": 5, "stride_tokens": 3, "regularisation": 0.1}
    plain = token_distances(states, right, **options)
    monkeypatch.setattr(gear_rl.signals.transport, "_LARGEST_EXPONENT", 0.0)
    agree(token_distances(states, right, **options), plain, 1e-5)
    assert methods == ["sinkhorn", "log_sinkhorn"]


class Held(TorchDispatchMode):
    """The most bytes that tensors held at once while it was entered."""

    def __init__(self):
        super().__init__()
        self.now = self.most = 0
        self.known = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for value in tree_flatten(out)[0]:
            if isinstance(value, torch.Tensor) and value.untyped_storage()._cdata not in self.known:
                storage = value.untyped_storage()
                key, size = storage._cdata, storage.nbytes()
                self.known.add(key)
                self.now += size
                self.most = max(self.most, self.now)
                weakref.finalize(storage, self.forget, key, size)
        return out

    def forget(self, key, size):
        self.known.discard(key)
        self.now -= size


@pytest.mark.parametrize("lengths", [[100, 90, 110, 100], [9] * 40], ids=["long", "short"])
def test_memory_keeps_to_its_bound(lengths):
    states = random_states(lengths, num_dims=32)
    right = [i % 2 == 0 for i in range(len(lengths))]
    options = {"window_tokens": 20, "stride_tokens": 5, "iterations": 2}
    held = {}
    for max_mb in (0.5, 64.0):
        with Held() as held[max_mb]:
            found = token_distances(states, right, max_mb=max_mb, **options)
        agree(found, token_distances(states, right, max_mb=8.0, **options), 1e-5)
    # A little beside: the states end to end, and which windows contain a token.
    assert held[0.5].most < 0.5 * 2**20 + 3 * sum(s.nbytes for s in states)
    assert held[0.5].most > 0.2 * 2**20, "and it is made use of"
    assert held[64.0].most > 2 * held[0.5].most, "without the bound there is something to bound"


@given(st.integers(1, 60), st.integers(1, 20), st.integers(1, 20))
def test_every_token_has_a_window_and_none_leaves_the_completion(num_tokens, window, stride):
    stride = min(stride, window)
    starts = window_starts(num_tokens, window, stride)
    size = min(window, num_tokens)
    assert {t for s in starts for t in range(s, s + size)} == set(range(num_tokens))
    assert starts == sorted(set(starts)) and starts[0] == 0
    assert [range(s, s + size) for s in starts] == windows_of(num_tokens, window, stride)
