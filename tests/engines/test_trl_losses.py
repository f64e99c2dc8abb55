"""Which of TRL's losses keep a method's token credit: the gradient of each token's log-probability shows it."""

import dataclasses
import re
from pathlib import Path

import pytest
import torch

from engines import tiny
from engines.loss_grid import (
    ADVANTAGE_B,
    GRID,
    LOG_RATIO,
    MASK,
    WEIGHT,
    accepted,
    gradients,
    spread,
    trainer_of,
)
from engines.probing import Probe
from gear_rl import Gear, GEARConfig, GEARTrainer, Shuffled, Uniform
from gear_rl.engines.trl.config import check_loss
from gear_rl.methods import METHODS, Crpo, Gigpo
from gear_rl.traits import distillation_of
from gear_rl.types import TokenSignals
from test_contract import made_up

PAGE = (Path(__file__).parents[2] / "docs" / "engines.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| `(\w+)` \| (\w+) \| (\w+) \| ([\d.]+) \| ([\d.]+) \|$", PAGE, re.MULTILINE)
DOCUMENTED = {(loss, level): (verdict, float(a), float(b)) for loss, level, verdict, a, b in ROWS}


def unloaded(folder: Path, credit, **changes) -> None:
    """Make a trainer of a model that does not exist: what is refused is refused before the model is sought."""
    GEARTrainer(
        "no-such-model",
        tiny.vowels,
        GEARConfig(**tiny.settings(folder, **changes)),
        tiny.rows(),
        credit=credit,
    )


# --- one importance ratio for a completion -------------------------------------------------------------------


@pytest.mark.parametrize(("loss_type", "level"), GRID)
def test_every_pair_is_refused_or_its_gradient_follows_the_weights(tiny_model, tmp_path, loss_type, level):
    trainer = trainer_of(tiny_model, tmp_path, loss_type, level)
    own = torch.where(MASK, WEIGHT, 0.0)
    verdict, *documented = DOCUMENTED[loss_type, level]
    assert verdict == ("accepted" if accepted(loss_type, level) else "refused")
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


def test_the_page_lists_every_pair_once_and_the_trainer_refuses_what_it_says(tmp_path):
    assert [row[:2] for row in ROWS] == GRID
    assert spread(WEIGHT.nan_to_num(), MASK.float()) == pytest.approx(1.6), "the weights' own"
    message = (
        "importance_sampling_level: 'sequence' with loss_type 'grpo' gives all tokens of a completion the same "
        "gradient, so the token credit of 'gear' would be lost; set it to 'token', or use credit 'uniform'"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        unloaded(tmp_path, Gear(), loss_type="grpo", importance_sampling_level="sequence")


def test_only_an_even_method_itself_takes_one_ratio_for_a_completion():
    class Heir(Uniform):
        """Inherits the name and could spread the credit."""

    even = ("uniform", "crpo", "opsd", "sdpg", "sdpo")
    for name in even:
        check_loss(METHODS[name](), "grpo", "sequence")
    others = [cls() for name, cls in METHODS.items() if name not in even]
    assert len(others) == len(METHODS) - len(even)
    for method in (*others, Shuffled(of=Uniform()), Probe(name="uniform"), Heir()):
        check_loss(method, "grpo", "token")
        check_loss(method, "cispo", "sequence")
        with pytest.raises(ValueError, match="importance_sampling_level: 'sequence' with loss_type 'grpo'"):
            check_loss(method, "grpo", "sequence")


@pytest.mark.parametrize(
    "changes",
    [
        {"delta": 1.05},
        {"beta": 0.05, "use_bias_correction_kl": True},
        {"entropy_coef": 0.01},
        {"top_entropy_quantile": 0.5},
        {"off_policy_mask_threshold": 0.1},
        {"loss_type": "vespo", "off_policy_mask_threshold": 0.1},
    ],
    ids=lambda changes: "-".join(changes),
)
def test_other_options_of_the_loss_keep_the_weights(tiny_model, tmp_path, changes):
    """A token's gradient is its weight times that of GRPO, also where the option leaves GRPO nothing."""
    changes = {"loss_type": "dapo"} | changes
    trainer = trainer_of(tiny_model, tmp_path, changes.pop("loss_type"), "token", **changes)
    weighted, plain = gradients(trainer, LOG_RATIO)
    torch.testing.assert_close(weighted, torch.where(MASK, WEIGHT, 0.0) * plain, rtol=1e-3, atol=1e-6)
    kept = (plain != 0).any(-1)
    if "off_policy_mask_threshold" in changes:
        assert kept.tolist() == [True, True, True, True, False], "the unlikely failure is dropped as a whole"
    else:
        assert kept.all()
    if "top_entropy_quantile" in changes:
        assert (plain[MASK] != 0).float().mean() <= 0.51


@pytest.mark.parametrize("mode", ["token", "sequence"])
def test_vllms_correction_keeps_the_weights(tiny_model, tmp_path, mode):
    trainer = trainer_of(tiny_model, tmp_path, "dapo", "token")
    trainer.use_vllm = trainer.vllm_importance_sampling_correction = True
    factor = (0.3 * LOG_RATIO).exp()
    factor = factor if mode == "token" else factor.mean(-1, keepdim=True)
    weighted, plain = gradients(trainer, LOG_RATIO, importance_sampling_ratio=factor)
    torch.testing.assert_close(weighted, torch.where(MASK, WEIGHT, 0.0) * plain, rtol=1e-3, atol=1e-6)


# --- rules for a completion that follow the sign of its advantage --------------------------------------------

ADDING = [name for name, cls in METHODS.items() if getattr(cls, "additive", False) is True]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"loss_type": "vespo"},
            "loss_type: 'vespo' weighs a completion by the sign of its advantage, but with credit 'gigpo' its "
            "tokens may differ in sign; take another loss_type, or use a method that only reweights, such as "
            "'gear'",
        ),
        (
            {"off_policy_mask_threshold": 0.1},
            "off_policy_mask_threshold: 0.1 drops a completion by the sign of its advantage, but with credit "
            "'gigpo' its tokens may differ in sign; set it to None, or use a method that only reweights, such as "
            "'gear'",
        ),
    ],
    ids=["vespo", "mask"],
)
def test_an_additive_method_is_refused_where_a_sign_stands_for_the_completion(tmp_path, changes, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        unloaded(tmp_path, Gigpo(), **changes)
    with pytest.raises(OSError, match="huggingface"):
        unloaded(tmp_path, Gear(), **changes)


def test_which_methods_may_differ_in_sign_inside_a_completion():
    assert {"gigpo", "mt_grpo", "igpo", "crpo"} <= set(ADDING)
    for method in (*(METHODS[name]() for name in ADDING), Shuffled(of=Crpo()), Probe(additive=True)):
        check_loss(method, "sapo")
        for rule in (("vespo", "token", None), ("dapo", "token", 0.0)):
            with pytest.raises(ValueError, match="may differ in sign"):
                check_loss(method, *rule)
    for name, cls in METHODS.items():
        if name not in ADDING:
            check_loss(cls(), "vespo", "token", 0.1)


@pytest.mark.parametrize("name", [name for name, cls in METHODS.items() if distillation_of(cls())])
def test_a_distilling_methods_advantage_has_the_completions_sign(name):
    """It counts as additive for its signals, but its term is added beside the advantage (the rest: contract)."""
    method = METHODS[name]()
    if hasattr(method, "strength"):
        method = dataclasses.replace(method, strength=0.5)
    values = made_up(MASK, torch.Generator().manual_seed(0)) | {"reference_logprob": torch.zeros(MASK.shape)}
    signals = TokenSignals(mask=MASK, **values)
    advantage = method(ADVANTAGE_B, signals).advantage
    assert torch.equal(advantage.sign(), torch.where(MASK, ADVANTAGE_B.sign()[:, None], 0.0))
