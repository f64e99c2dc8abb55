"""How far a completion's hidden states are from those of the group's completions that came out otherwise.

The one file of this package that needs a library beside torch: POT solves the transport problems, many at a
time, and is imported only when a distance is computed (``pip install 'gear-rl[shear]'``).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from gear_rl.engine import Engine, ForwardRequest
from gear_rl.model.forwards import evaluating, last_states
from gear_rl.rollouts import RolloutBatch, trained_width
from gear_rl.signals.passes import ModelPasses, PassSignal
from gear_rl.signals.signal import BatchSignal, GroupB, SuccessB
from gear_rl.tensor.lists import int_list

_NOWHERE = 1e12
"""Cost of a place that pads a short window: nothing is ever sent there, and a float32 still holds it."""
_LARGEST_EXPONENT = 40.0
"""Up to here exp(-x), and a product of two potentials that undo it, are far from the ends of float32."""
_COPIES = 8
"""Float32 tensors as large as the costs that are held at once while a tile is solved: POT's five, and ours."""


@dataclass(frozen=True)
class TransportDistance(PassSignal):
    """How far (Wasserstein) the hidden states around a token are from those of the group's completions with the
    opposite outcome, in mean lengths of a hidden state; 0 where there is none (SHEAR, arXiv:2604.23318).

    Our reading where the paper is silent: a token's state is that of its own position after the final norm; only
    trained tokens count; the last window ends with the completion. Completions that are not scored hold 0, but
    the others are compared with them.
    """

    name = "transport_distance"
    whole_groups = True

    window_tokens: int = 100
    stride_tokens: int = 25

    def __post_init__(self) -> None:
        if self.stride_tokens > self.window_tokens:
            raise ValueError(
                f"stride_tokens: {self.stride_tokens} must be 1 to window_tokens ({self.window_tokens}), or "
                "tokens fall between the windows"
            )

    @property
    def reads(self) -> tuple[BatchSignal, ...]:
        return (JudgedGroup(), SuccessB())

    @torch.no_grad()
    def compute(self, passes: ModelPasses, request: ForwardRequest) -> Tensor:
        mask, scored_B, size = request.completions.mask, request.scored_B, passes.batch_size
        right = cast(list[bool], request.inputs["success_B"].bool().tolist())  # pyright: ignore
        groups = [
            rows
            for rows in _groups(mask, request.inputs["judged_group_B"])
            if scored_B[rows].any() and len({right[b] for b in rows}) == 2
        ]
        count = sum(-(-len(rows) // size) for rows in groups)
        surplus = passes.largest(count) - count
        distances = torch.zeros(mask.shape, device=mask.device)
        with evaluating(passes.model):
            for rows in groups:  # no forward holds two groups
                parts = [rows[i : i + size] for i in range(0, len(rows), size)]
                states = [state for part in parts for state in _trained_states(passes.model, request, part)]
                values = token_distances(
                    states,
                    [right[b] for b in rows],
                    window_tokens=self.window_tokens,
                    stride_tokens=self.stride_tokens,
                )
                for b, value in zip(rows, values, strict=True):
                    distances[b, mask[b]] = value
            for _ in range(surplus if len(mask) else 0):
                _trained_states(passes.model, request, [0])
        return torch.where(scored_B[:, None], distances, 0.0)


@dataclass(frozen=True)
class JudgedGroup(BatchSignal):
    """The group of the completion; a number of its own where it has no reward, so that it is alone."""

    name = "judged_group_B"

    def compute(self, batch: RolloutBatch, engine: Engine) -> Tensor:
        group_B = GroupB().compute(batch, engine)
        own_B = torch.arange(len(group_B), device=group_B.device)
        return torch.where(batch.has_reward(), group_B, -1 - own_B)


def token_distances(
    states: Sequence[Float[Tensor, "_N D"]],
    right: Sequence[bool],
    *,
    window_tokens: int = 100,
    stride_tokens: int = 25,
    regularisation: float = 0.05,
    iterations: int = 100,
    max_mb: float | None = None,
) -> list[Float[Tensor, " _N"]]:
    """The distances of one group's tokens, given their hidden states: one tensor for each completion.

    That of a window is the least cost (Euclidean) of a Sinkhorn-regularised plan to any window of a completion
    whose ``right`` differs; a token has the largest of the windows that contain it, divided by the mean length of
    the states. ``iterations`` is a number and not a tolerance, so that no distance depends on which others are
    solved beside it. ``max_mb`` bounds a tile of problems; None is 32 on the CPU, 256 elsewhere.

    Two states one apart, of mean length 1; with a single place to go every plan is the same:

    >>> token_distances([torch.tensor([[0.5, 0.0]]), torch.tensor([[1.5, 0.0]])], [True, False])
    [tensor([1.]), tensor([1.])]
    """
    scale = torch.cat([s.float().square().sum(-1).sqrt() for s in states]).mean()
    sides = [[i for i, r in enumerate(right) if r is outcome] for outcome in (True, False)]
    one, other = (_windows([states[i] for i in side], window_tokens, stride_tokens) for side in sides)
    # Every pair of windows is solved once, for both its sides.
    near = [torch.full((len(side.place_KW),), torch.inf, device=scale.device) for side in (one, other)]
    num_a, num_b = _tile_size(one, other, max_mb)
    for a in range(0, len(near[0]), num_a):
        for b in range(0, len(near[1]), num_b):
            rows, columns = slice(a, a + num_a), slice(b, b + num_b)
            distance_AB = _solve_tile(one.tile(rows), other.tile(columns), scale, regularisation, iterations)
            near[0][rows] = torch.minimum(near[0][rows], distance_AB.amin(1))
            near[1][columns] = torch.minimum(near[1][columns], distance_AB.amin(0))
    values: dict[int, Tensor] = {}
    for side, own, near_K in zip(sides, (one, other), near, strict=True):
        each_KW = near_K[:, None].expand(own.place_KW.shape)
        value_N = near_K.new_zeros(len(own.states_ND))
        value_N.scatter_reduce_(0, own.place_KW.flatten(), each_KW.flatten(), "amax")
        values |= zip(side, torch.split(value_N, [len(states[i]) for i in side]), strict=True)
    return [values[i] for i in range(len(states))]


def window_starts(num_tokens: int, window_tokens: int, stride_tokens: int) -> list[int]:
    """Where the windows of a completion begin; the last one ends with it, a short completion has one.

    >>> window_starts(10, 4, 3), window_starts(11, 4, 3), window_starts(3, 4, 3)
    ([0, 3, 6], [0, 3, 6, 7], [0])
    """
    last = max(0, num_tokens - window_tokens)
    return [*range(0, last, stride_tokens), last]


def _groups(mask: Bool[Tensor, "B T"], group_B: Int[Tensor, " B"]) -> list[list[int]]:
    """The rows of each group that have a trained token."""
    members: dict[int, list[int]] = {}
    for b, group in enumerate(int_list(group_B)):
        if mask[b].any():
            members.setdefault(group, []).append(b)
    return list(members.values())


def _trained_states(model: nn.Module, request: ForwardRequest, rows: list[int]) -> list[Tensor]:
    """The hidden states *of* each row's trained tokens, not of those before them."""
    completions, batch = request.completions, torch.tensor(rows, device=request.scored_B.device)
    prompts, mask = request.student.trimmed(batch), completions.mask[batch]
    width = trained_width(mask)
    ids_BS = torch.cat([prompts.ids_BP, completions.ids[batch, :width]], 1)
    attention_BS = torch.cat([prompts.attention_BP, completions.attention[batch, :width]], 1)
    hidden = last_states(model, ids_BS, attention_BS)[:, ids_BS.shape[1] - width :]
    return [row[keep] for row, keep in zip(hidden, mask[:, :width], strict=True)]


class _Windows(NamedTuple):
    """Windows of states: all their trained tokens end to end, the places of each window in them, and the masses.

    A short window is padded with its last place, at mass 0.
    """

    states_ND: Float[Tensor, "N D"]
    place_KW: Int[Tensor, "K W"]
    mass_KW: Float[Tensor, "K W"]

    def tile(self, rows: slice) -> "_Windows":
        """Some of the windows, with the states that they span, no wider than the widest."""
        mass_KW = self.mass_KW[rows]
        width = int((mass_KW > 0).any(0).sum())
        place_KW = self.place_KW[rows, :width]
        first = int(place_KW.min())
        return _Windows(self.states_ND[first : int(place_KW.max()) + 1], place_KW - first, mass_KW[:, :width])


def _windows(states: Sequence[Tensor], window_tokens: int, stride_tokens: int) -> _Windows:
    """The windows of one outcome's completions."""
    start: list[int] = []
    size: list[int] = []
    offset = 0
    for rows in states:
        starts = window_starts(len(rows), window_tokens, stride_tokens)
        start += [offset + s for s in starts]
        size += [min(len(rows), window_tokens)] * len(starts)
        offset += len(rows)
    start_K, size_K = (torch.tensor(x, device=states[0].device)[:, None] for x in (start, size))
    place = torch.arange(max(size), device=states[0].device)
    mass_KW = torch.where(place < size_K, 1.0 / size_K, 0.0)
    return _Windows(torch.cat(list(states)), start_K + torch.minimum(place, size_K - 1), mass_KW)


def _tile_size(one: _Windows, other: _Windows, max_mb: float | None) -> tuple[int, int]:
    """How many windows of either side make a tile that keeps to ``max_mb``: about as many of each."""
    width, num_dims = max(one.place_KW.shape[1], other.place_KW.shape[1]), one.states_ND.shape[1]
    pair, window = 4 * _COPIES * width**2, 2 * 8 * width * num_dims  # bytes; states in float64, twice
    default_mb = 32.0 if one.states_ND.device.type == "cpu" else 256.0
    most_bytes = (max_mb or default_mb) * 2**20

    def tile_beside(count: int, limit: int) -> int:
        most = (most_bytes - window * count) / (pair * count + window)
        return max(1, min(limit, int(most)))

    # The root of pair s^2 + 2 window s = most_bytes: a square tile.
    square = max(1, int((math.sqrt(window**2 + pair * most_bytes) - window) / pair))
    num_a = tile_beside(min(square, len(other.place_KW)), len(one.place_KW))
    return num_a, tile_beside(num_a, len(other.place_KW))


def _solve_tile(
    one: _Windows, other: _Windows, scale: Tensor, regularisation: float, iterations: int
) -> Float[Tensor, "A B"]:
    """The distance of every window of one tile to every window of the other, in units of ``scale``."""
    try:
        from ot.batch import solve_batch  # pyright: ignore
    except ImportError as error:
        raise ModuleNotFoundError(
            "transport_distance is computed with POT, which is not installed: pip install 'gear-rl[shear]'"
        ) from error
    (states_a, place_a, mass_a), (states_b, place_b, mass_b) = one, other
    # Windows overlap, so the states that they span are compared once. By way of the product of two matrices,
    # which in float32 would see equal states as 0.001 apart.
    between = (torch.cdist(states_a.double(), states_b.double()) / scale).float()
    cost = between[place_a[:, None, :, None], place_b[None, :, None, :]]
    # Where no exponential vanishes, it takes a fifth of the time without logarithms. On the CPU only: that is
    # where POT makes the potentials.
    plain = cost.device.type == "cpu" and bool(cost.max() <= _LARGEST_EXPONENT * regularisation)
    del between
    for padding in ((mass_a == 0)[:, None, :, None], (mass_b == 0)[None, :, None]):
        if bool(padding.any()):
            cost, plain = cost.masked_fill_(padding, _NOWHERE), False
    A, B, N, M = cost.shape
    result: Any = solve_batch(
        cost.view(A * B, N, M),
        regularisation,
        a=mass_a[:, None].expand(A, B, N).reshape(-1, N),
        b=mass_b[None].expand(A, B, M).reshape(-1, M),
        max_iter=iterations,
        tol=0.0,  # a tolerance would be the batch's, and a distance would depend on its neighbours
        method="sinkhorn" if plain else "log_sinkhorn",
        grad="detach",
    )
    return result.value_linear.view(A, B)
