"""IGPO (arXiv:2510.14967): numbers worked by hand for both releases and for ours, and the loop over turns."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gear_rl.methods import Igpo
from gear_rl.types import TokenSignals
from methods.completions import PROPERTY
from methods.grouped import close, groups, relative, spread, turns_of_rows

NAN = math.nan
MASK = torch.tensor([[1, 1, 0, 1, 0, 1], [1, 0, 1, 0, 0, 0], [1, 1, 1, 0, 0, 0], [1, 0, 0, 0, 0, 0]]).bool()
FOUR = TokenSignals(
    mask=MASK,
    group_B=torch.tensor([1, 1, 1, 0]),
    reward_B=torch.tensor([1.0, 0.0, 0.5, 7.0]),
    answer_confidence=torch.tensor(
        [
            [0.25, 0.25, NAN, 0.75, NAN, 0.5],  # gains 1/2 and -1/4, then the reward 1: returns 5/4, 3/4, 1
            [0.25, NAN, 0.25, NAN, NAN, NAN],  # gain 0, reward 0
            [0.25, 0.25, 0.25, NAN, NAN, NAN],  # one turn, which is the last: reward 1/2
            [0.5, NAN, NAN, NAN, NAN, NAN],
        ]
    ),
)
BASE = torch.tensor([9.0, 9.0, 9.0, 9.0])


def laid_out(a, b, c):
    """The values of the turns of the three siblings on their tokens; the fourth is alone and has 0."""
    rows = [[a[0], a[0], 0, a[1], 0, a[2]], [b[0], 0, b[1], 0, 0, 0], [c[0]] * 3 + [0] * 3, [0] * 6]
    return torch.tensor(rows, dtype=torch.float32)


THIRD = 1 / 3
# All six returns 5/4, 3/4, 1, 0, 0, 1/2 have mean 7/12; the rewards 1/2, -1/4, 1, 0, 0, 1/2 have mean 7/24 and
# squared differences 25 + 169 + 289 + 49 + 49 + 25 = 606 (in 1/576), so a deviation of sqrt(606 / 5 / 576).
MEAN, DEVIATION = 7 / 24, math.sqrt(606 / 5 / 576) + 1e-6


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        # first turns 5/4, 0, 1/2 (mean 7/12), second turns 3/4, 0 (mean 3/8), the third turn alone
        (Igpo(), laid_out([2 * THIRD, 0.375, 0.0], [-7 / 12, -0.375], [-1 / 12])),
        # discount 1/2: returns 5/8, 1/4, 1 and 0, 0 and 1/2: first turns' mean 3/8
        (Igpo(discount=0.5), laid_out([0.25, 0.125, 0.0], [-0.375, -0.125], [0.125])),
        (Igpo(baseline="group"), laid_out([2 * THIRD, 1 / 6, 5 / 12], [-7 / 12, -7 / 12], [-1 / 12])),
        # the last 1, 0, 1/2 (mean 1/2); the others' returns 5/4, 3/4, 0 (mean 2/3)
        (Igpo(baseline="kind"), laid_out([7 / 12, 1 / 12, 0.5], [-2 * THIRD, -0.5], [0.0])),
        # rewards less 7/24, then summed: a 17/24, 17/24 - 13/24, 17/24 - 13/24 + 5/24
        (
            Igpo(compare="rewards", baseline="group"),
            laid_out([9 / 24, 4 / 24, 17 / 24], [-14 / 24, -7 / 24], [5 / 24]),
        ),
        (
            Igpo(compare="rewards", baseline="group", scale=True),
            laid_out([9 / 24, 4 / 24, 17 / 24], [-14 / 24, -7 / 24], [5 / 24]) / DEVIATION,
        ),
        # outcomes 1/2, -1/2, 0 apart; gains 1/2, -1/4, 0 less 1/12: 5/12, -4/12, -1/12
        (
            Igpo(compare="rewards", baseline="kind"),
            laid_out([7 / 12, 2 / 12, 0.5], [-7 / 12, -0.5], [0.0]),
        ),
        # rewards by turn: first 1/2, 0, 1/2 (mean 1/3), second -1/4, 0 (mean -1/8), third alone
        (Igpo(compare="rewards"), laid_out([1 / 24, -0.125, 0.0], [-5 / 24, 0.125], [1 / 6])),
        # first turns' deviation: differences 8, -7, -1 in 1/12, squares 114 / 144 / 2; second: 3/8 * sqrt(2)
        (
            Igpo(scale=True),
            laid_out(
                [8 / math.sqrt(57), 1 / math.sqrt(2), 0.0],
                [-7 / math.sqrt(57), -1 / math.sqrt(2)],
                [-1 / math.sqrt(57)],
            ),
        ),
    ],
)
def test_worked_by_hand(method, expected):
    credit = method(BASE, FOUR)
    close(credit.advantage, expected)
    assert credit.segment_id.tolist()[:2] == [[0, 0, -1, 1, -1, 2], [0, -1, 1, -1, -1, -1]]


def test_the_first_release_compares_what_stands_at_the_same_index():
    """Columns of a: 5/4, 5/4, 3/4, 3/4, 1, 1; of b: 0; of c: 1/2 three times, then nothing. Their means: 7/12,
    7/12, 5/12, 1/4, 1/3, 1/3. The fourth is alone."""
    expected = [
        [2 / 3, 2 / 3, 0, 1 / 2, 0, 2 / 3],
        [-7 / 12, 0, -5 / 12, 0, 0, 0],
        [-1 / 12, -1 / 12, 1 / 12, 0, 0, 0],
        [0] * 6,
    ]
    close(Igpo(baseline="token")(BASE, FOUR).advantage, torch.tensor(expected))


igpos = st.builds(
    Igpo,
    discount=st.sampled_from([0.0, 0.5, 1.0]),
    compare=st.sampled_from(["returns", "rewards"]),
    baseline=st.sampled_from(["turn", "group", "kind"]),
    scale=st.booleans(),
    epsilon=st.sampled_from([1e-2, 1.0]),
) | st.builds(Igpo, baseline=st.just("token"), scale=st.booleans(), epsilon=st.sampled_from([1e-2, 1.0]))


def by_the_loop(method: Igpo, signals: TokenSignals) -> torch.Tensor:
    rows = turns_of_rows(signals)
    reward: dict[tuple[int, int], float] = {}
    for b, turns in enumerate(rows):
        sure = [signals.answer_confidence[b, columns[0]].item() for columns in turns]
        for k in range(len(turns)):
            last = k == len(turns) - 1
            reward[b, k] = signals.reward_B[b].item() if last else sure[k + 1] - sure[k]

    def summed(value: dict[tuple[int, int], float]) -> dict[tuple[int, int], float]:
        out: dict[tuple[int, int], float] = {}
        for b, turns in enumerate(rows):
            total = 0.0
            for k in reversed(range(len(turns))):
                total = value[b, k] + method.discount * total
                out[b, k] = total
        return out

    epsilon = method.epsilon if method.scale else None
    group = signals.group_B.tolist()
    if method.baseline == "token":
        returns = summed(reward)
        num_tokens = signals.mask.shape[1]
        at = [
            [
                next((returns[b, k] for k, columns in enumerate(turns) if columns[-1] >= t), 0.0)
                for t in range(num_tokens)
            ]
            for b, turns in enumerate(rows)
        ]
        out = torch.zeros(signals.mask.shape)
        for b, turns in enumerate(rows):
            for t in [t for columns in turns for t in columns]:
                peers = [at[j][t] for j in range(len(rows)) if group[j] == group[b]]
                out[b, t] = relative(at[b][t], peers, epsilon)
        return out

    def kind(turn: tuple[int, int]):
        b, k = turn
        return {"turn": k, "group": None, "kind": k == len(rows[b]) - 1}[method.baseline]

    def compared(value: dict[tuple[int, int], float]) -> dict[tuple[int, int], float]:
        return {
            turn: relative(
                own,
                [v for t, v in value.items() if group[t[0]] == group[turn[0]] and kind(t) == kind(turn)],
                epsilon,
            )
            for turn, own in value.items()
        }

    by_turn = compared(summed(reward)) if method.compare == "returns" else summed(compared(reward))
    return spread(signals, by_turn)


@PROPERTY
@given(groups(), igpos)
def test_agrees_with_the_loop(drawn, method):
    advantage_B, signals = drawn
    close(method(advantage_B, signals).advantage, by_the_loop(method, signals))
