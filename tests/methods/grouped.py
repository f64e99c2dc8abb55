"""Groups of rollouts with turns, for the methods that compare siblings, and their turns as plain lists."""

import statistics

import torch
from hypothesis import strategies as st

from gear_rl.types import TokenSignals


@st.composite
def groups(draw, max_rows: int = 6, max_tokens: int = 8) -> tuple[torch.Tensor, TokenSignals]:
    """Advantages and signals of rollouts of up to three groups, in any order; NaN under the mask.

    Rewards and confidences are eighths, which float32 holds exactly, with many ties.
    """
    num_rows, num_tokens = draw(st.integers(1, max_rows)), draw(st.integers(1, max_tokens))
    g = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))

    def eighths(*shape):
        return torch.randint(-8, 9, shape, generator=g) / 8

    mask = torch.rand(num_rows, num_tokens, generator=g) < 0.7
    signals = TokenSignals(
        mask=mask,
        group_B=torch.tensor([7, 0, 3])[torch.randint(3, (num_rows,), generator=g)],
        reward_B=eighths(num_rows),
        rewards_BR=eighths(num_rows, 3),
        anchor_id=torch.where(mask, torch.randint(3, mask.shape, generator=g), -1),
        turn_reward=torch.where(mask, eighths(*mask.shape), torch.nan),
        answer_confidence=torch.where(mask, eighths(*mask.shape), torch.nan),
    )
    return eighths(num_rows), signals


def turns_of_rows(signals: TokenSignals) -> list[list[list[int]]]:
    """The columns of every turn of every row, read from left to right."""
    rows = []
    for row in signals.mask.tolist():
        turns, inside = [], False
        for column, sampled in enumerate(row):
            if sampled and not inside:
                turns.append([])
            if sampled:
                turns[-1].append(column)
            inside = sampled
        rows.append(turns)
    return rows


def relative(value: float, among: list[float], epsilon: float | None) -> float:
    """``value`` less the mean of ``among``, which holds it, over the sample deviation plus ``epsilon``."""
    difference = value - statistics.mean(among)
    if epsilon is None:
        return difference
    return difference / ((statistics.stdev(among) if len(among) > 1 else 0.0) + epsilon)


def spread(signals: TokenSignals, value_of_turn: dict[tuple[int, int], float]) -> torch.Tensor:
    """Every token with the value of its turn, which is named by its row and number; 0 elsewhere."""
    out = torch.zeros(signals.mask.shape)
    for b, turns in enumerate(turns_of_rows(signals)):
        for k, columns in enumerate(turns):
            for column in columns:
                out[b, column] = value_of_turn[b, k]
    return out


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-5)
