"""How far a completion's hidden states are from those of the group's completions that came out otherwise.

The one file of this package that needs a library beside torch: POT solves the transport problems, many at a
time, and is imported only when a distance is computed (``pip install 'gear-rl[shear]'``).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from gear_rl.signals.batch import Completions, ForwardRequest, Prompts
from gear_rl.signals.forwards import evaluating, last_states
from gear_rl.signals.passes import ModelPasses, PassSignal
from gear_rl.signals.rollout import JudgedGroup, Succeeded
from gear_rl.signals.signal import BatchSignal
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
    opposite outcome, in mean lengths of a hidden state; 0 where there is none (SHEAR, arXiv:2604.23318)."""

    name = "transport_distance"
    whole_groups = True

    window_tokens: int = 100
    stride_tokens: int = 25

    def __post_init__(self) -> None:
        if self.window_tokens < 1:
            raise ValueError(f"window_tokens: {self.window_tokens}; give 1 token or more")
        if not 1 <= self.stride_tokens <= self.window_tokens:
            raise ValueError(
                f"stride_tokens: {self.stride_tokens} must be 1 to window_tokens ({self.window_tokens}), or "
                "tokens fall between the windows"
            )

    @property
    def reads(self) -> tuple[BatchSignal, ...]:
        return (JudgedGroup(), Succeeded())

    def compute(self, passes: ModelPasses, request: ForwardRequest) -> Tensor:
        return transport_distances(
            passes.model,
            request.completions,
            request.student,
            request.inputs["judged_group_B"],
            request.inputs["succeeded_B"].bool(),
            row_B=request.scored_B,
            batch_size=passes.batch_size,
            largest=passes.largest,
            window_tokens=self.window_tokens,
            stride_tokens=self.stride_tokens,
        )


@torch.no_grad()
def transport_distances(
    model: nn.Module,
    completions: Completions,
    student: Prompts,
    group_B: Int[Tensor, " B"],
    right_B: Bool[Tensor, " B"],
    *,
    row_B: Bool[Tensor, " B"] | None = None,
    batch_size: int = 8,
    largest: Callable[[int], int] = int,
    **settings: Any,
) -> Float[Tensor, "B T"]:
    """``TransportDistance``, given each completion's group and whether it came out right.

    Our reading where the paper is silent: a token's state is that of its own position after the final norm; only
    trained tokens have a part; the last window ends with the completion. A group must lie wholly inside the rows.
    Rows where ``row_B`` is False hold 0, but the others are compared with them. No forward holds two groups;
    surplus ones up to ``largest`` of their number are dropped. ``settings`` are those of ``token_distances``.
    """
    mask = completions.mask
    wanted_B = torch.ones_like(right_B) if row_B is None else row_B
    groups = _groups(mask, group_B, right_B, wanted_B)
    count = sum(-(-len(rows) // batch_size) for rows in groups)
    surplus = largest(count) - count
    distances = torch.zeros(mask.shape, device=mask.device)
    with evaluating(model):
        for rows in groups:
            states: list[Tensor] = []
            for i in range(0, len(rows), batch_size):
                states += _trained_states(model, completions, student, rows[i : i + batch_size])
            values = token_distances(states, [bool(right_B[b]) for b in rows], **settings)
            for b, value in zip(rows, values, strict=True):
                distances[b, mask[b]] = value
        for _ in range(surplus if len(mask) else 0):
            _trained_states(model, completions, student, [0])
    return torch.where(wanted_B[:, None], distances, 0.0)


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
    values = [torch.zeros(len(s), device=s.device) for s in states]
    if len(set(right)) < 2:
        return values
    scale = torch.cat([s.float().square().sum(-1).sqrt() for s in states]).mean()
    # A group of zeros has no length to measure by; its distances are 0 anyway.
    scale = torch.where(scale == 0, 1.0, scale)
    sides = [[i for i, r in enumerate(right) if r is outcome] for outcome in (True, False)]
    one, other = (_windows([states[i] for i in side], window_tokens, stride_tokens) for side in sides)
    # Every pair of windows is solved once, for both its sides.
    near = [torch.full((len(side.place_KW),), torch.inf, device=scale.device) for side in (one, other)]
    num_a, num_b = _tile_size(one, other, max_mb)
    solve_batch = _solve_batch()
    for a in range(0, len(near[0]), num_a):
        for b in range(0, len(near[1]), num_b):
            rows, columns = slice(a, a + num_a), slice(b, b + num_b)
            tiles = one.tile(rows), other.tile(columns)
            distance_AB = _solved(*tiles, scale, regularisation, iterations, solve_batch)
            near[0][rows] = torch.minimum(near[0][rows], distance_AB.amin(1))
            near[1][columns] = torch.minimum(near[1][columns], distance_AB.amin(0))
    for side, own, near_K in zip(sides, (one, other), near, strict=True):
        each_KW = near_K[:, None].expand(own.place_KW.shape)
        value_N = near_K.new_zeros(len(own.states_ND))
        value_N.scatter_reduce_(0, own.place_KW.flatten(), each_KW.flatten(), "amax")
        end = 0
        for i in side:
            begin, end = end, end + len(states[i])
            values[i] = value_N[begin:end]
    return values


def window_starts(num_tokens: int, window_tokens: int, stride_tokens: int) -> list[int]:
    """Where the windows of a completion begin; the last one ends with it, a short completion has one.

    >>> window_starts(10, 4, 3), window_starts(11, 4, 3), window_starts(3, 4, 3)
    ([0, 3, 6], [0, 3, 6, 7], [0])
    """
    last = max(0, num_tokens - window_tokens)
    return [*range(0, last, stride_tokens), last]


def _groups(
    mask: Bool[Tensor, "B T"],
    group_B: Int[Tensor, " B"],
    right_B: Bool[Tensor, " B"],
    wanted_B: Bool[Tensor, " B"],
) -> list[list[int]]:
    """The rows with a trained token of each group that has both outcomes and a row that is wanted."""
    members: dict[int, list[int]] = {}
    for b, group in enumerate(int_list(group_B)):
        if mask[b].any():
            members.setdefault(group, []).append(b)
    return [
        rows
        for rows in members.values()
        if wanted_B[rows].any() and len({bool(right_B[b]) for b in rows}) == 2
    ]


def _trained_states(
    model: nn.Module, completions: Completions, student: Prompts, rows: list[int]
) -> list[Tensor]:
    """The hidden states *of* each row's trained tokens, not of those before them."""
    batch = torch.tensor(rows, device=completions.mask.device)
    mask, attention = completions.mask[batch], student.attention_BP[batch]
    # Columns after the last trained token of the batch change nothing that is read; nor does empty prompt.
    width = int((mask.any(0).nonzero().max() + 1).item()) if mask.any() else min(1, mask.shape[1])
    begin = int(attention.any(0).nonzero().min().item()) if attention.any() else 0
    ids_BS = torch.cat([student.ids_BP[batch][:, begin:], completions.ids[batch][:, :width]], 1)
    attention_BS = torch.cat([attention[:, begin:], completions.attention[batch][:, :width]], 1)
    hidden = last_states(model, ids_BS, attention_BS)[:, ids_BS.shape[1] - width :]
    return [row[keep] for row, keep in zip(hidden, mask[:, :width], strict=True)]


class _Windows(NamedTuple):
    """Windows of states: all their trained tokens end to end, where in them each window's are, and their masses.

    A short window is padded with its last place, at mass 0."""

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

    def beside(count: int, limit: int) -> int:
        most = (most_bytes - window * count) / (pair * count + window)
        return max(1, min(limit, int(most)))

    # The root of pair s^2 + 2 window s = most_bytes: a square tile.
    square = max(1, int((math.sqrt(window**2 + pair * most_bytes) - window) / pair))
    num_a = beside(min(square, len(other.place_KW)), len(one.place_KW))
    return num_a, beside(num_a, len(other.place_KW))


def _solved(
    one: _Windows,
    other: _Windows,
    scale: Tensor,
    regularisation: float,
    iterations: int,
    solve_batch: Any,
) -> Float[Tensor, "A B"]:
    """The distance of every window of one tile to every window of the other, in units of ``scale``."""
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
    result = solve_batch(
        cost.view(A * B, N, M),
        regularisation,
        a=mass_a[:, None].expand(A, B, N).reshape(-1, N),
        b=mass_b[None].expand(A, B, M).reshape(-1, M),
        max_iter=iterations,
        tol=0.0,  # a tolerance would be the batch's, and a distance would depend on its neighbours
        method="sinkhorn" if plain else "log_sinkhorn",
        grad="detach",
    )
    return cast(Tensor, result.value_linear).view(A, B)


def _solve_batch() -> Any:
    """POT's batched solver; one error that says what to install where it is absent."""
    try:
        from ot.batch import solve_batch  # pyright: ignore
    except ImportError as error:
        raise ModuleNotFoundError(
            "transport_distance is computed with POT, which is not installed: pip install 'gear-rl[shear]'"
        ) from error
    return cast(Any, solve_batch)
