"""The slow twin of the transport distances, written from the formula of arXiv:2604.23318, and made-up states.

``d_k = min_j min_q W(P_k, P_jq) / (mean length of the group's states)``, and a token has the largest ``d_k`` of
the windows that contain it: one pair of windows after the other, one call of the library for each.
"""

import math

import ot
import torch


def sinkhorn(x, y, regularisation):
    """One problem, one library call, float64 and to convergence."""
    cost = (x[:, None] - y[None]).norm(dim=-1).numpy()
    a, b = ([1 / len(z)] * len(z) for z in (x, y))
    plan = ot.sinkhorn(
        a, b, cost, regularisation, method="sinkhorn_log", numItermax=20_000, stopThr=1e-10, warn=False
    )
    return float((plan * cost).sum())


def windows_of(num_tokens, window, stride):
    if num_tokens <= window:
        return [range(num_tokens)]
    starts = []
    start = 0
    while start + window < num_tokens:
        starts.append(start)
        start += stride
    return [range(s, s + window) for s in (*starts, num_tokens - window)]


def by_loop(states, right, window, stride, regularisation):
    states = [s.double() for s in states]
    lengths = [float(h.norm()) for s in states for h in s]
    mean = sum(lengths) / len(lengths)
    found = []
    for i, mine in enumerate(states):
        value = [0.0] * len(mine)
        for window_k in windows_of(len(mine), window, stride):
            nearest = math.inf
            for j, other in enumerate(states):
                if right[j] != right[i]:
                    for window_q in windows_of(len(other), window, stride):
                        x, y = mine[list(window_k)] / mean, other[list(window_q)] / mean
                        nearest = min(nearest, sinkhorn(x, y, regularisation))
            if nearest < math.inf:
                for t in window_k:
                    value[t] = max(value[t], nearest)
        found.append(torch.tensor(value))
    return found


def random_states(lengths, num_dims=5, seed=0, spread=1.0):
    g = torch.Generator().manual_seed(seed)
    return [
        torch.randn(n, num_dims, generator=g) + spread * torch.randn(1, num_dims, generator=g)
        for n in lengths
    ]


def agree(found, expected, tolerance=2e-4):
    for value, other in zip(found, expected, strict=True):
        torch.testing.assert_close(value, other.float(), atol=tolerance, rtol=0)
