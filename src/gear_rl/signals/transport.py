"""How far a completion's hidden states are from those of the group's completions that came out otherwise.

The one file of this package that needs a library beside torch: POT solves the transport problems, many at a
time, and is imported only when a distance is computed (``pip install 'gear-rl[shear]'``). Knows no method and no
trainer.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from gear_rl.signals.batch import Completions, ForwardRequest, Prompts
from gear_rl.signals.forwards import evaluating, last_states
from gear_rl.signals.passes import ModelPasses, PassSignal
from gear_rl.signals.rollout import JudgedGroup, Succeeded
from gear_rl.signals.signal import BatchSignal

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
        _check_windows(self.window_tokens, self.stride_tokens)

    @property
    def reads(self) -> tuple[BatchSignal, ...]:
        return (JudgedGroup(), Succeeded())

    def compute(self, passes: ModelPasses, request: ForwardRequest) -> Tensor:
        group_B, right_B = request.inputs["judged_group_B"], request.inputs["succeeded_B"].bool()
        rows: dict[str, Any] = {"row_B": request.scored_B, "batch_size": passes.batch_size}
        return transport_distances(
            passes.model,
            request.completions,
            request.student,
            group_B,
            right_B,
            num_batches=passes.largest(
                num_transport_batches(request.completions.mask, group_B, right_B, **rows)
            ),
            window_tokens=self.window_tokens,
            stride_tokens=self.stride_tokens,
            **rows,
        )


@torch.no_grad()
def transport_distances(
    model: nn.Module,
    completions: Completions,
    student: Prompts,
    group_B: Int[Tensor, " B"],
    right_B: Bool[Tensor, " B"],
    *,
    window_tokens: int = 100,
    stride_tokens: int = 25,
    regularisation: float = 0.05,
    iterations: int = 100,
    row_B: Bool[Tensor, " B"] | None = None,
    batch_size: int = 8,
    num_batches: int = 0,
    max_mb: float | None = None,
) -> Float[Tensor, "B T"]:
    """``TransportDistance``, given each completion's group and whether it came out right.

    The distance of a window is the least Sinkhorn-regularised Wasserstein-1 distance (Euclidean cost) to any
    window of a completion of the same group whose ``right_B`` differs; a token has the largest of the windows
    that contain it, divided by the mean length of the group's hidden states. Our reading where the paper is
    silent: a token's state is that of its own position after the final norm; only trained tokens have a part;
    the last window ends with the completion; the cost is that of the regularised plan alone. ``iterations``
    is a number and not a tolerance, so that no distance depends on which others are solved beside it. A group
    must lie wholly inside the rows. Rows where ``row_B`` is False hold 0, but the others are compared with
    them. ``max_mb`` bounds a tile of problems; None is 32 on the CPU, 256 elsewhere. Surplus forwards up to
    ``num_batches`` are dropped. Raises ``ValueError`` for a setting outside its range and
    ``ModuleNotFoundError`` without POT.
    """
    solver = _Solver(window_tokens, stride_tokens, regularisation, iterations, max_mb)
    mask = completions.mask
    wanted = torch.ones_like(right_B) if row_B is None else row_B
    groups = _groups(mask, group_B, right_B, wanted)
    done = num_transport_batches(mask, group_B, right_B, row_B=row_B, batch_size=batch_size)
    right, want = _flags(right_B), _flags(wanted)
    distances = torch.zeros(mask.shape, device=mask.device)
    with evaluating(model):
        for rows in groups:
            states: list[Tensor] = []
            for i in range(0, len(rows), batch_size):
                states += _trained_states(model, completions, student, rows[i : i + batch_size])
            values = solver.token_distances(states, [right[b] for b in rows], [want[b] for b in rows])
            for b, value in zip(rows, values, strict=True):
                if want[b]:
                    distances[b, mask[b]] = value
        for _ in range(num_batches - done if len(mask) else 0):
            _trained_states(model, completions, student, [0])
    return distances


def num_transport_batches(
    mask: Bool[Tensor, "B T"],
    group_B: Int[Tensor, " B"],
    right_B: Bool[Tensor, " B"],
    *,
    row_B: Bool[Tensor, " B"] | None = None,
    batch_size: int = 8,
) -> int:
    """How many forwards ``transport_distances`` runs for these rows: no batch holds two groups.

    >>> mask, right_B = torch.ones(5, 3, dtype=torch.bool), torch.tensor([True, False, False, True, True])
    >>> num_transport_batches(mask, torch.tensor([0, 0, 0, 1, 1]), right_B, batch_size=2)
    2
    """
    if batch_size < 1:
        raise ValueError(f"batch_size: {batch_size}; give 1 completion or more")
    wanted = torch.ones_like(right_B) if row_B is None else row_B
    return sum(-(-len(rows) // batch_size) for rows in _groups(mask, group_B, right_B, wanted))


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
    """``transport_distances`` of one group whose hidden states are at hand: one tensor for each completion.

    Two states one apart, of mean length 1; with a single place to go every plan is the same:

    >>> token_distances([torch.tensor([[0.5, 0.0]]), torch.tensor([[1.5, 0.0]])], [True, False])
    [tensor([1.]), tensor([1.])]
    """
    solver = _Solver(window_tokens, stride_tokens, regularisation, iterations, max_mb)
    return solver.token_distances(states, right, [True] * len(states))


def window_starts(num_tokens: int, window_tokens: int, stride_tokens: int) -> list[int]:
    """Where the windows of a completion begin; the last one ends with it, a short completion has one.

    >>> window_starts(10, 4, 3), window_starts(11, 4, 3), window_starts(3, 4, 3)
    ([0, 3, 6], [0, 3, 6, 7], [0])
    """
    last = max(0, num_tokens - window_tokens)
    return [*range(0, last, stride_tokens), last]


def completion_states(
    model: nn.Module, ids_BS: Int[Tensor, "B S"], attention_BS: Int[Tensor, "B S"], num_tokens: int
) -> Float[Tensor, "B T D"]:
    """The last hidden states *of* the last ``num_tokens`` tokens; ``hidden_states`` gives those before them."""
    return last_states(model, ids_BS, attention_BS)[:, ids_BS.shape[1] - num_tokens :]


def _groups(
    mask: Bool[Tensor, "B T"],
    group_B: Int[Tensor, " B"],
    right_B: Bool[Tensor, " B"],
    wanted_B: Bool[Tensor, " B"],
) -> list[list[int]]:
    """The rows with a trained token of each group that has both outcomes and a row that is wanted."""
    members: dict[int, list[int]] = {}
    group_of = cast(list[int], group_B.tolist())  # pyright: ignore[reportUnknownMemberType]
    for b, (group, has_token) in enumerate(zip(group_of, _flags(mask.any(-1)), strict=True)):
        if has_token:
            members.setdefault(group, []).append(b)
    right, wanted = _flags(right_B), _flags(wanted_B)
    return [
        rows
        for rows in members.values()
        if any(wanted[b] for b in rows) and len({right[b] for b in rows}) == 2
    ]


def _flags(x_B: Bool[Tensor, " B"]) -> list[bool]:
    return cast(list[bool], x_B.tolist())  # pyright: ignore[reportUnknownMemberType]


def _trained_states(
    model: nn.Module, completions: Completions, student: Prompts, rows: list[int]
) -> list[Tensor]:
    """The hidden states of each row's trained tokens; what they lie between is gone."""
    batch = torch.tensor(rows, device=completions.mask.device)
    mask, attention = completions.mask[batch], student.attention_BP[batch]
    # Columns after the last trained token of the batch change nothing that is read; nor does empty prompt.
    width = int((mask.any(0).nonzero().max() + 1).item()) if mask.any() else min(1, mask.shape[1])
    begin = int(attention.any(0).nonzero().min().item()) if attention.any() else 0
    hidden = completion_states(
        model,
        torch.cat([student.ids_BP[batch][:, begin:], completions.ids[batch][:, :width]], 1),
        torch.cat([attention[:, begin:], completions.attention[batch][:, :width]], 1),
        num_tokens=width,
    )
    return [row[keep] for row, keep in zip(hidden, mask[:, :width], strict=True)]


@dataclass(frozen=True, slots=True)
class _Windows:
    """The windows of one outcome's completions, over all their trained tokens laid end to end."""

    states_ND: Tensor
    start: list[int]
    size: list[int]
    wanted: list[bool]

    def tile(self, begin: int, end: int) -> tuple[Tensor, Tensor, Tensor]:
        """The states that the windows span, where in them each window's are, and their masses (0 for padding)."""
        start, size = self.start[begin:end], self.size[begin:end]
        first, width, device = start[0], max(size), self.states_ND.device
        states_ND = self.states_ND[first : max(s + n for s, n in zip(start, size, strict=True))]
        start_K, size_K = (torch.tensor(x, device=device)[:, None] for x in (start, size))
        place = torch.arange(width, device=device)
        mass_KW = torch.where(place < size_K, 1.0 / size_K, 0.0)
        return states_ND, start_K - first + torch.minimum(place, size_K - 1), mass_KW


class _Solver:
    """The settings of the distance, and the distances of one group at those."""

    def __init__(
        self,
        window_tokens: int,
        stride_tokens: int,
        regularisation: float,
        iterations: int,
        max_mb: float | None,
    ) -> None:
        _check_windows(window_tokens, stride_tokens)
        for name, value in (("regularisation", regularisation), ("max_mb", max_mb)):
            if value is not None and not 0.0 < value < math.inf:
                raise ValueError(f"{name}: {value} must be a finite number above 0")
        if iterations < 1:
            raise ValueError(f"iterations: {iterations}; give 1 or more")
        self.window_tokens, self.stride_tokens = window_tokens, stride_tokens
        self.regularisation, self.iterations = regularisation, iterations
        self.max_mb = max_mb
        self.solve_batch = _solve_batch()

    def token_distances(
        self, states: Sequence[Tensor], right: Sequence[bool], wanted: Sequence[bool]
    ) -> list[Tensor]:
        values = [torch.zeros(len(s), device=s.device) for s in states]
        if len(set(right)) < 2:
            return values
        lengths_N = torch.cat([s.float().square().sum(-1).sqrt() for s in states])
        scale = lengths_N.mean()
        # A group of zeros has no length to measure by; its distances are 0 anyway.
        scale = torch.where(scale == 0, 1.0, scale)
        # What is wanted comes first on either side, so that the tiles of what nobody wants can be left out.
        sides = [
            sorted((i for i, r in enumerate(right) if r is side), key=lambda i: not wanted[i])
            for side in (True, False)
        ]
        one, other = (self._windows([states[i] for i in side], [wanted[i] for i in side]) for side in sides)
        for side, distance_K in zip(sides, self._nearest(one, other, scale), strict=True):
            at = 0
            for i in side:
                starts, size = self._layout(len(states[i]))
                begin_K = torch.tensor(starts, device=distance_K.device)
                place_N = torch.arange(len(states[i]), device=distance_K.device)[:, None]
                covers_NK = (place_N >= begin_K) & (place_N < begin_K + size)
                values[i] = torch.where(covers_NK, distance_K[at : at + len(starts)], 0.0).amax(-1)
                at += len(starts)
        return values

    def _layout(self, num_tokens: int) -> tuple[list[int], int]:
        starts = window_starts(num_tokens, self.window_tokens, self.stride_tokens)
        return starts, min(num_tokens, self.window_tokens)

    def _windows(self, states: Sequence[Tensor], wanted: Sequence[bool]) -> _Windows:
        start: list[int] = []
        size: list[int] = []
        want: list[bool] = []
        offset = 0
        for rows, row_wanted in zip(states, wanted, strict=True):
            starts, tokens = self._layout(len(rows))
            start += [offset + s for s in starts]
            size += [tokens] * len(starts)
            want += [row_wanted] * len(starts)
            offset += len(rows)
        return _Windows(torch.cat(list(states)), start, size, want)

    def _nearest(self, one: _Windows, other: _Windows, scale: Tensor) -> tuple[Tensor, Tensor]:
        """The distance from each window of either side to the nearest of the other; every pair is solved once."""
        near = [torch.full((len(side.start),), torch.inf, device=scale.device) for side in (one, other)]
        num_a, num_b = self._tile_size(one, other)
        for a in range(0, len(one.start), num_a):
            for b in range(0, len(other.start), num_b):
                rows, columns = slice(a, a + num_a), slice(b, b + num_b)
                if any(one.wanted[rows]) or any(other.wanted[columns]):
                    distance_AB = self._solved(one.tile(a, a + num_a), other.tile(b, b + num_b), scale)
                    near[0][rows] = torch.minimum(near[0][rows], distance_AB.amin(1))
                    near[1][columns] = torch.minimum(near[1][columns], distance_AB.amin(0))
        return near[0], near[1]

    def _tile_size(self, one: _Windows, other: _Windows) -> tuple[int, int]:
        """How many windows of either side make a tile that keeps to ``max_mb``: about as many of each."""
        width, num_dims = max(*one.size, *other.size), one.states_ND.shape[1]
        pair, window = 4 * _COPIES * width**2, 2 * 8 * width * num_dims  # bytes; states in float64, twice
        default_mb = 32.0 if one.states_ND.device.type == "cpu" else 256.0
        most_bytes = (self.max_mb or default_mb) * 2**20

        def beside(count: int, limit: int) -> int:
            most = (most_bytes - window * count) / (pair * count + window)
            return max(1, min(limit, int(most)))

        # The root of pair s^2 + 2 window s = most_bytes: a square tile.
        square = max(1, int((math.sqrt(window**2 + pair * most_bytes) - window) / pair))
        num_a = beside(min(square, len(other.start)), len(one.start))
        return num_a, beside(num_a, len(other.start))

    def _solved(
        self, one: tuple[Tensor, Tensor, Tensor], other: tuple[Tensor, Tensor, Tensor], scale: Tensor
    ) -> Float[Tensor, "A B"]:
        """The distance of every window of one tile to every window of the other, in units of ``scale``."""
        (states_a, place_a, mass_a), (states_b, place_b, mass_b) = one, other
        # Windows overlap, so the states that they span are compared once. By way of the product of two matrices,
        # which in float32 would see equal states as 0.001 apart.
        between = (torch.cdist(states_a.double(), states_b.double()) / scale).float()
        cost = between[place_a[:, None, :, None], place_b[None, :, None, :]]
        # Where no exponential vanishes, it takes a fifth of the time without logarithms. On the CPU only: that is
        # where POT makes the potentials.
        plain = cost.device.type == "cpu" and bool(cost.max() <= _LARGEST_EXPONENT * self.regularisation)
        del between
        for padding in ((mass_a == 0)[:, None, :, None], (mass_b == 0)[None, :, None]):
            if bool(padding.any()):
                cost, plain = cost.masked_fill_(padding, _NOWHERE), False
        A, B, N, M = cost.shape
        result = self.solve_batch(
            cost.view(A * B, N, M),
            self.regularisation,
            a=mass_a[:, None].expand(A, B, N).reshape(-1, N),
            b=mass_b[None].expand(A, B, M).reshape(-1, M),
            max_iter=self.iterations,
            tol=0.0,  # a tolerance would be the batch's, and a distance would depend on its neighbours
            method="sinkhorn" if plain else "log_sinkhorn",
            grad="detach",
        )
        return cast(Tensor, result.value_linear).view(A, B)


def _check_windows(window_tokens: int, stride_tokens: int) -> None:
    if window_tokens < 1:
        raise ValueError(f"window_tokens: {window_tokens}; give 1 token or more")
    if not 1 <= stride_tokens <= window_tokens:
        raise ValueError(
            f"stride_tokens: {stride_tokens} must be 1 to window_tokens ({window_tokens}), or tokens fall "
            "between the windows"
        )


def _solve_batch() -> Any:
    """POT's batched solver; one error that says what to install where it is absent."""
    try:
        from ot.batch import solve_batch  # pyright: ignore
    except ImportError as error:
        raise ModuleNotFoundError(
            "transport_distance is computed with POT, which is not installed: pip install 'gear-rl[shear]'"
        ) from error
    return cast(Any, solve_batch)
