"""Short ways to write down a completion, and random ones for the property tests."""

from typing import Any

import torch
from hypothesis import strategies as st

from gear_rl.methods import Gear
from gear_rl.types import TokenSignals

ANY = torch.ones(1)
"""Advantages where their signs are not read."""


def plain(**settings: Any) -> Gear:
    """``gear:plain``, the reconstruction without our changes, but for these settings."""
    return Gear(**{**Gear.presets["plain"], **settings})


def completion(divergence=None, entropy=None, *, turn_id=None, student=None, teacher=None):
    """The signals of one completion without a masked token, from lists; its tokens are 0, 1, 2, ..."""
    given = {
        "divergence": divergence,
        "student_entropy": entropy,
        "student_logprob": student,
        "teacher_logprob": teacher,
    }
    row = {name: torch.tensor([values], dtype=torch.float32) for name, values in given.items() if values}
    mask = torch.ones_like(next(iter(row.values())), dtype=torch.bool)
    turns = None if turn_id is None else torch.tensor([turn_id])
    return TokenSignals(mask=mask, turn_id=turns, token_id=torch.arange(mask.shape[1])[None], **row)


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-5)


@st.composite
def written(draw, max_tokens: int = 9) -> TokenSignals:
    """Three completions with every signal that GEAR may read, in quarters of a nat: ties are common, and no
    comparison depends on the last bit. Tokens are masked anywhere; turns, sentences and lines begin anywhere."""
    shape = 3, draw(st.integers(1, max_tokens))
    g = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    mask = torch.rand(shape, generator=g) < draw(st.sampled_from([0.7, 0.9, 1.0]))
    after_gap = mask & ~torch.nn.functional.pad(mask, (1, 0))[:, :-1]

    def cut(begins, share):
        """Numbers of units that begin where ``begins`` says, and anywhere else with this share."""
        begins = mask & (begins | (torch.rand(shape, generator=g) < share))
        return torch.where(mask, begins.cumsum(-1) - 1, -1)

    def nats():
        return torch.randint(13, shape, generator=g) / 4

    turn_id = cut(after_gap, draw(st.sampled_from([0.0, 0.3])))
    new_turn = mask & (turn_id != torch.nn.functional.pad(turn_id, (1, 0), value=-1)[:, :-1])
    return TokenSignals(
        mask=mask,
        turn_id=draw(st.sampled_from([None, turn_id])),
        token_id=torch.where(mask, torch.randint(10, shape, generator=g), -1),
        # Some completions of noise, and some that are nearly of noise: 2^-17 of a quarter is 2e-6 nats.
        divergence=nats() * draw(st.sampled_from([1.0, 1.0, 1.0, 2.0**-17, 2.0**-20])),
        student_logprob=-nats(),
        teacher_logprob=-nats(),
        sentence_id=cut(new_turn, 0.4),
        line_id=cut(new_turn, 0.2),
        student_entropy=nats(),
        teacher_entropy=nats(),
    )


thresholds = st.sampled_from([0.25, 0.4, 0.5, 0.75])
gears = st.builds(
    Gear,
    estimator=st.sampled_from(["full", "full", "k3", "abs_k1"]),
    divergence_norm=st.sampled_from(["minmax", "max", "log1p_minmax", "robust", "none"]),
    entropy_norm=st.sampled_from(["minmax", "max", "log1p_minmax", "robust", "log_vocab", "none"]),
    vocab_size=st.just(7),
    departures=st.sampled_from(["all", "all", "with_reward"]),
    # Doubts are then exact in float32, too.
    aftermath=st.sampled_from([0.0, 0.0, 0.5, 1.0]),
    onset_signal=st.sampled_from(["divergence", "divergence", "entropy"]),
    onset_rule=st.sampled_from(["peak", "peak", "threshold", "quantile", "local_max", "never"]),
    # Levels that float32 holds exactly, so that a quantile falls on a token in both or in neither.
    onset_threshold=st.sampled_from([0.25, 0.5, 0.75]),
    onset_floor_nats=st.sampled_from([0.0, 0.01, 0.3]),
    end_rule=st.sampled_from(["next_fork", "entropy_drop", "fixed_length", "turn"]),
    end_threshold=thresholds,
    max_segment_tokens=st.integers(1, 5),
    aligned=st.sampled_from(["own", "one"]),
    weight_function=st.sampled_from(["linear", "exp"]),
    alpha=st.sampled_from([0.0, 0.5, 1.0, 3.0]),
    sign_mode=st.sampled_from(["agnostic", "aware", "neg_only"]),
    clip=st.sampled_from([None, (0.5, 2.0), (0.9, 1.0)]),
    renormalise=st.sampled_from(["mean", "none", "geomean"]),
) | st.builds(
    plain,
    onset_signal=st.sampled_from(["divergence", "divergence", "entropy"]),
    onset_rule=st.sampled_from(["peak", "peak", "threshold", "local_max"]),
    onset_threshold=thresholds,
    end_rule=st.sampled_from(["next_fork", "entropy_drop", "turn", "sentence", "line"]),
    end_signal=st.sampled_from(["student_entropy", "teacher_entropy"]),
    end_threshold=thresholds,
    max_segment_tokens=st.sampled_from([None, 2]),
    sign_mode=st.sampled_from(["agnostic", "aware"]),
)
