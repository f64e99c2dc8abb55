"""Compare the entries of a group with each other, and move values between turns and their tokens.

A group is what shares a number; its entries may stand anywhere. A turn's value is a column of a (B, K) table with
K = T: no completion has more turns than tokens, and the shape does not depend on the data.
"""

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor


def group_numbers(*keys: Int[Tensor, "*N"]) -> Int[Tensor, "*N"]:
    """Number groups from 0: entries share a number where they agree in every key.

    >>> group_numbers(torch.tensor([7, 7, 2, 7]), torch.tensor([1, 0, 1, 1]))
    tensor([2, 1, 0, 2])
    """
    number = _ranks(keys[0].flatten())
    for key in keys[1:]:
        other = _ranks(key.flatten())
        number = _ranks(number * len(other) + other)  # ranks are below N, so the pairs stay apart
    return number.view(keys[0].shape)


def group_relative(
    x: Float[Tensor, "*N"],
    group: Int[Tensor, "*N"],
    among: Bool[Tensor, "*N"] | None = None,
    *,
    epsilon: float | None = None,
) -> Float[Tensor, "*N"]:
    """Each entry less the mean of its group, and with ``epsilon`` over the sample deviation plus ``epsilon``.

    An entry that is alone in its group, and one where ``among`` is False, gets 0; equal entries get exactly 0
    (sums are float64). What ``among`` leaves out may hold anything. A non-finite entry spoils its own group only.

    >>> group_relative(torch.tensor([1.0, 5.0, 3.0]), torch.tensor([4, 9, 4]))
    tensor([-1.,  0.,  1.])
    """
    centred, squares, size = _deviations(x, group, among)
    if epsilon is not None:
        centred = centred / (_deviation(squares, size) + epsilon)
    return centred.to(x.dtype)


def turn_groups(group_B: Int[Tensor, " B"], num_turns: int) -> Int[Tensor, "B K"]:
    """Numbers of groups for a table of turns: those of the same number share one, among a group's completions.

    >>> turn_groups(torch.tensor([3, 3, 8]), 2)
    tensor([[0, 1],
            [0, 1],
            [2, 3]])
    """
    shape = len(group_B), num_turns
    column = torch.arange(num_turns, device=group_B.device)
    return group_numbers(group_B[:, None].expand(shape), column.expand(shape))


def turn_advantages(
    reward: Float[Tensor, "B K"],
    group_B: Int[Tensor, " B"],
    has: Bool[Tensor, "B K"],
    *,
    discount: float,
    epsilon: float,
) -> Float[Tensor, "B K"]:
    """Each turn's return to go less the mean over the group's completions that have such a turn, as an advantage.

    The unit is the deviation of the group's whole returns, the undiscounted sums, plus ``epsilon``. A difference
    counts at most the root of the sum of the whole returns' squared differences: equal returns give 0 wherever
    their rewards stand, and nearly equal ones no large advantage. ``reward`` is 0 where there is no turn.

    >>> reward = torch.tensor([[0.6, 0.0, 0.0, 0.0], [0.5, 0.5, 0.5, 0.5]])
    >>> turn_advantages(reward, torch.tensor([0, 0]), reward > 0, discount=1.0, epsilon=0.0)
    tensor([[-0.7071,  0.0000,  0.0000,  0.0000],
            [ 0.7071,  0.0000,  0.0000,  0.0000]])
    """
    centred, _, _ = _deviations(returns_to_go(reward, discount), turn_groups(group_B, reward.shape[1]), has)
    _, squares_B, size_B = _deviations(reward.double().sum(-1), group_B, has.any(-1))
    most, unit = squares_B.sqrt()[:, None], (_deviation(squares_B, size_B) + epsilon)[:, None]
    return (centred.clamp(-most, most) / unit).to(reward.dtype)


def has_turn(turn_id: Int[Tensor, "B T"]) -> Bool[Tensor, "B K"]:
    """Whether the completion has a turn k, in column k.

    >>> has_turn(torch.tensor([[0, 0, -1, 1], [-1, -1, -1, -1]]))
    tensor([[ True,  True, False, False],
            [False, False, False, False]])
    """
    return turn_values(torch.ones_like(turn_id, dtype=torch.bool), turn_id)


def last_turn(has: Bool[Tensor, "B K"]) -> Bool[Tensor, "B K"]:
    """Whether turn k is the completion's last, given which turns it has.

    >>> last_turn(torch.tensor([[True, True, False], [False, False, False]]))
    tensor([[False,  True, False],
            [False, False, False]])
    """
    return has & ~following(has)


def following(value: Shaped[Tensor, "B K"]) -> Shaped[Tensor, "B K"]:
    """The value of the next turn; 0 (False) in the last column.

    >>> following(torch.tensor([[1.0, 2.0]]))
    tensor([[2., 0.]])
    """
    after = torch.zeros_like(value)
    after[:, : max(value.shape[1] - 1, 0)] = value[:, 1:]
    return after


def turn_values(x: Shaped[Tensor, "B T"], turn_id: Int[Tensor, "B T"]) -> Shaped[Tensor, "B K"]:
    """What ``x`` holds on the first token of each turn, turn k in column k; 0 for turns that there are not.

    >>> turn_values(torch.tensor([[5.0, 6.0, 9.0, 7.0]]), torch.tensor([[0, 0, -1, 1]]))
    tensor([[5., 7., 0., 0.]])
    """
    num_tokens = x.shape[1]
    if num_tokens == 0:
        return x.clone()
    seen = torch.full_like(turn_id, -1)
    seen[:, 1:] = turn_id.cummax(-1).values[:, :-1]
    # Every token that opens no turn goes to one more column, which is dropped again.
    column = torch.where(turn_id > seen, turn_id, num_tokens)
    table = x.new_zeros(x.shape[0], num_tokens + 1)
    return table.scatter_(1, column, x)[:, :num_tokens]


def turn_sums(x: Float[Tensor, "B T"], turn_id: Int[Tensor, "B T"]) -> Float[Tensor, "B K"]:
    """The sum of ``x`` over the tokens of each turn, turn k in column k; 0 for turns that there are not.

    >>> turn_sums(torch.tensor([[5.0, 6.0, 9.0, 7.0]]), torch.tensor([[0, 0, -1, 1]]))
    tensor([[11.,  7.,  0.,  0.]])
    """
    mine = torch.where(turn_id >= 0, x, 0.0)
    return torch.zeros_like(x).scatter_add_(1, turn_id.clamp(min=0), mine)


def on_turns(value: Shaped[Tensor, "B K"], turn_id: Int[Tensor, "B T"]) -> Shaped[Tensor, "B T"]:
    """Each token gets the value of its turn; 0 outside of turns.

    >>> on_turns(torch.tensor([[5.0, 7.0, 0.0]]), torch.tensor([[0, -1, 1]]))
    tensor([[5., 0., 7.]])
    """
    return torch.where(turn_id >= 0, value.gather(1, turn_id.clamp(min=0)), torch.zeros_like(value[:1, :1]))


def returns_to_go(reward: Float[Tensor, "B K"], discount: float) -> Float[Tensor, "B K"]:
    """From each turn on the discounted sum of the rewards, ``sum_l discount^(l - k) r_l`` over ``l >= k``.

    In log2(K) sums of shifted tables: the window of turns that a column has summed doubles each time.

    >>> returns_to_go(torch.tensor([[1.0, 0.0, 4.0]]), discount=0.5)
    tensor([[2., 2., 4.]])
    """
    total, width = reward.clone(), 1
    while width < reward.shape[1]:
        ahead = total[:, width:] * discount**width
        total = torch.cat([total[:, : ahead.shape[1]] + ahead, total[:, ahead.shape[1] :]], 1)
        width *= 2
    return total


def _deviations(
    x: Float[Tensor, "*N"], group: Int[Tensor, "*N"], among: Bool[Tensor, "*N"] | None
) -> tuple[Float[Tensor, "*N"], Float[Tensor, "*N"], Float[Tensor, "*N"]]:
    """Each entry less its group's mean, and of its group the sum of their squares and the size; float64."""
    counts = torch.ones_like(x, dtype=torch.bool) if among is None else among
    number = group_numbers(group).flatten()

    def over_group(values: Tensor) -> Tensor:
        total = values.new_zeros(values.numel())
        return total.scatter_add_(0, number, values.flatten())[number].view(values.shape)

    exact = torch.where(counts, x, 0.0).double()
    size = over_group(counts.double())
    centred = exact - torch.where(counts, over_group(exact) / size.clamp(min=1.0), 0.0)
    return centred, over_group(centred.square()), size


def _deviation(squares: Float[Tensor, "*N"], size: Float[Tensor, "*N"]) -> Float[Tensor, "*N"]:
    """The sample deviation; 0 of one entry."""
    return (squares / (size - 1.0).clamp(min=1.0)).sqrt()


def _ranks(key_N: Int[Tensor, " N"]) -> Int[Tensor, " N"]:
    """How many different keys are smaller. No ``unique``: the number of groups stays on the device."""
    ordered, order = key_N.sort()
    new = torch.zeros_like(ordered)
    new[1:] = ordered[1:] != ordered[:-1]
    return torch.empty_like(key_N).scatter(0, order, new.cumsum(0))
