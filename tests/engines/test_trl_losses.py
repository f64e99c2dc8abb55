"""Which of TRL's losses keep a method's token credit: the gradient of each token's log-probability shows it."""

import re
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from torch import Tensor

from engines import tiny
from engines.probing import Probe
from gear_rl import Gear, GEARConfig, GEARTrainer, Shuffled, Uniform
from gear_rl.engines.trl.config import LOSS_TYPES, check_loss
from gear_rl.methods import METHODS, Crpo

PAGE = (Path(__file__).parents[2] / "docs" / "engines.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| `(\w+)` \| (\w+) \| (\w+) \| ([\d.]+) \| ([\d.]+) \|$", PAGE, re.MULTILINE)
DOCUMENTED = {(loss, level): (verdict, float(a), float(b)) for loss, level, verdict, a, b in ROWS}
GRID = [(loss_type, level) for loss_type in LOSS_TYPES for level in ("token", "sequence")]
NAN = float("nan")
WEIGHT = torch.tensor(
    [
        [0.25, 1.75, 1.0, 1.0, 0.5, 1.5, 1.0],
        [0.25, 1.75, 1.0, 1.0, 1.75, 0.25, 1.0],
        [1.75, 1.0, 0.25, NAN, NAN, NAN, NAN],
        [1.75, 0.25, 1.0, 1.0, NAN, 0.0, 2.0],
        [0.25, 1.75, 1.0, 1.0, 0.5, 1.5, 1.0],
    ]
)
"""Mean 1 in every completion; NaN is padding, and in the fourth completion the answer of a tool."""
MASK = ~WEIGHT.isnan()
ADVANTAGE_B = torch.tensor([0.7, -1.3, 1.1, -0.4, -0.9])
LOG_RATIO = torch.tensor(
    [
        [0.1, -0.1, 0.4, -0.4, 0.05, -0.05, 0.02],
        [0.1, -0.1, 0.4, -0.4, 0.05, -0.05, 0.02],
        [-0.1, 0.2, 0.05, 0.0, 0.0, 0.0, 0.0],
        [0.02, 0.1, 0.4, -0.4, 0.9, -0.05, -0.1],
        [-0.12, -0.11, -0.1, -0.14, -0.13, -0.1, -0.12],
    ]
)
"""Log-probability now less that at sampling: some tokens lie beyond the clip of 0.2, on either side, and the
last completion has become less likely as a whole."""
OPTIONS = {"cispo": {"epsilon_high": 5.0}}
"""With TRL's default of 0.2 every ratio of CISPO would be cut to 0.2, and no ratio could be seen."""


def trainer_of(model: str, folder: Path, loss_type: str, level: str) -> GEARTrainer:
    """A trainer with that loss. Its method is ``Uniform``, which every pair takes, so all can be measured."""
    options = {"loss_type": loss_type, "importance_sampling_level": level, **OPTIONS.get(loss_type, {})}
    args = GEARConfig(**tiny.settings(folder, **options))
    trainer = GEARTrainer(model, tiny.vowels, args, tiny.rows(), credit=Uniform())
    trainer.current_gradient_accumulation_steps = 1
    trainer.model.train()
    return trainer


def gradient(trainer: GEARTrainer, advantage: Tensor, log_ratio: Tensor | None) -> Tensor:
    """d loss / d log pi of each token, (B, T), by a backward pass through TRL's ``_compute_loss``.

    Without ``log_ratio`` TRL is given no old log-probabilities: all ratios are 1.
    """
    rows, width = MASK.shape
    attended = MASK | (MASK.flip(-1).cumsum(-1).flip(-1) > 0)  # a tool's answer is, padding is not
    inputs = {
        "prompt_ids": torch.arange(30, 33).expand(rows, 3),
        "prompt_mask": torch.ones(rows, 3, dtype=torch.long),
        "completion_ids": torch.arange(20, 20 + rows * width).reshape(rows, width),
        "completion_mask": attended.long(),
        "tool_mask": MASK.long(),
        "advantages": advantage,
        "num_items_in_batch": MASK.sum(),
    }
    original, leaves = GEARTrainer._get_per_token_logps_and_entropies, []

    def with_leaf(*args, **options):
        logprob, *rest = original(trainer, *args, **options)
        leaves.append(logprob.detach().requires_grad_())
        # TRL reads both after this call.
        inputs["ref_per_token_logps"] = logprob.detach() - 0.3
        if log_ratio is not None:
            inputs["old_per_token_logps"] = logprob.detach() - log_ratio
        return leaves[0], *rest

    trainer._get_per_token_logps_and_entropies = with_leaf
    try:
        trainer._compute_loss(trainer.model, inputs).backward()
    finally:
        del trainer._get_per_token_logps_and_entropies
    [leaf] = leaves
    assert leaf.grad is not None
    return leaf.grad


def gradients(trainer: GEARTrainer, log_ratio: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Each token's gradient with ``WEIGHT`` and with weight 1, both less that without any advantage (KL)."""
    advantage = torch.where(MASK, ADVANTAGE_B[:, None], 0.0)
    weighted, plain, none = (
        gradient(trainer, given, log_ratio)
        for given in (advantage * WEIGHT.nan_to_num(), advantage, advantage * 0.0)
    )
    return weighted - none, plain - none


def spread(weighted: Tensor, plain: Tensor) -> float:
    """How unequal the weights are that reach the gradient: ``(max - min) / mean`` inside a completion, mean.

    A token's is its gradient with the weights over that without. Tokens that the loss clips do not count. That of
    ``WEIGHT`` is 1.5 in four completions and 2.0 in one.
    """
    found = []
    for row, reference in zip(weighted, plain, strict=True):
        kept = reference != 0
        if kept.any():
            each = row[kept] / reference[kept]
            found.append((each.max() - each.min()) / each.mean())
    return torch.stack(found).mean().item()


# --- one importance ratio for a completion -------------------------------------------------------------------


@pytest.mark.parametrize(("loss_type", "level"), GRID)
def test_every_pair_is_refused_or_its_gradient_follows_the_weights(tiny_model, tmp_path, loss_type, level):
    trainer = trainer_of(tiny_model, tmp_path, loss_type, level)
    own = torch.where(MASK, WEIGHT, 0.0)
    verdict, *documented = DOCUMENTED[loss_type, level]
    with nullcontext() if verdict == "accepted" else pytest.raises(ValueError, match="would be lost"):
        check_loss(Gear(), loss_type, level)
    for log_ratio, expected in zip((None, LOG_RATIO), documented, strict=True):
        weighted, plain = gradients(trainer, log_ratio)
        assert (plain[~MASK] == 0).all()
        assert (plain[MASK] != 0).float().mean() > (0.8 if log_ratio is not None else 0.99)
        assert spread(weighted, plain) == pytest.approx(expected, abs=0.01), "docs/engines.md"
        if verdict == "accepted":
            torch.testing.assert_close(weighted, own * plain, rtol=1e-3, atol=1e-6)
        else:
            assert spread(weighted, plain) < 0.01, "it keeps the credit, so why refuse it?"
    check_loss(Uniform(), loss_type, level)


def test_the_page_lists_every_pair_once():
    assert [row[:2] for row in ROWS] == GRID


def test_only_an_even_method_itself_takes_one_ratio_for_a_completion():
    class Heir(Uniform):
        """Inherits the name and could spread the credit."""

    even = ("uniform", "crpo", "opsd", "raft", "sdpg", "sdpo")
    for name in even:
        check_loss(METHODS[name](), "grpo", "sequence")
    others = [cls() for name, cls in METHODS.items() if name not in even]
    assert len(others) == len(METHODS) - len(even)
    for method in (*others, Shuffled(of=Uniform()), Probe(name="uniform"), Heir()):
        check_loss(method, "grpo", "token")
        check_loss(method, "cispo", "sequence")
        with pytest.raises(ValueError, match="importance_sampling_level: 'sequence' with loss_type 'grpo'"):
            check_loss(method, "grpo", "sequence")


# --- rules for a completion that follow the sign of its advantage --------------------------------------------


def test_only_an_additive_method_is_refused_where_a_sign_stands_for_the_completion():
    adding = {name for name, cls in METHODS.items() if getattr(cls(), "additive", False)}
    assert {"gigpo", "mt_grpo", "igpo", "crpo"} <= adding
    for method in (*(METHODS[name]() for name in adding), Shuffled(of=Crpo()), Probe(additive=True)):
        check_loss(method, "sapo")
        for rule in (("vespo", "token", None), ("dapo", "token", 0.0)):
            with pytest.raises(ValueError, match="may differ in sign"):
                check_loss(method, *rule)
    for name in METHODS.keys() - adding:
        check_loss(METHODS[name](), "vespo", "token", 0.1)
