"""Methods that read log-ratios to a teacher: one step is that of TRL's trainer, also with another model's."""

import shutil
from pathlib import Path

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from verl_cpu import harness, reference


@pytest.fixture(scope="module")
def larger(chain: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of twice the layers and width, over the chain's vocabulary."""
    folder = tmp_path_factory.mktemp("larger") / "model"
    shutil.copytree(chain / "model", folder, ignore=shutil.ignore_patterns("*.safetensors"))
    config = Qwen3Config.from_pretrained(folder)
    for name in ("num_hidden_layers", "hidden_size", "intermediate_size"):
        setattr(config, name, 2 * getattr(config, name))
    config.layer_types = ["full_attention"] * config.num_hidden_layers
    torch.manual_seed(1)
    Qwen3ForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    ("name", "own", "teacher", "at_least"),
    [
        ("opsd", [], {}, 16 * 8),
        ("sdpo", [], {"teacher_model_kind": "live"}, 8),  # of its own, a moving average, verl has no weights
        ("sdpg", ["anchor=none"], {}, 16 * 8),  # verl has the anchor itself
    ],
)
def test_distillation_from_sampled_tokens_trains_as_under_trl(
    name: str, own: list[str], teacher: dict[str, str], at_least: int, chain: Path, tmp_path: Path
):
    own = ["sampled=true", *own]
    words = [*own, *(f"teacher={kind}" for kind in teacher.values())]
    run = harness.train(tmp_path, chain, f"+gear={name}", *(f"gear.{word}" for word in words), steps=1)
    out, credit = tmp_path / "trl.pt", f"{name}:{','.join(own)}"
    theirs = reference.under_trl(tmp_path / "credit1.pt", chain / "model", out, credit, **teacher)
    # Where rewards are equal it trains, too; SDPO's teacher needs a sibling's success.
    reference.assert_trains_as(run, theirs, at_least=at_least)


def test_a_larger_teacher_of_two_ranks_is_that_of_trl(chain: Path, larger: Path, tmp_path: Path):
    run = harness.train(tmp_path, chain, "+gear=cast", f"gear.teacher_model={larger}", steps=1, ranks=2)
    teacher = {"teacher_model": str(larger)}
    theirs = reference.under_trl(
        tmp_path / "credit1.pt", chain / "model", tmp_path / "trl.pt", "cast", **teacher
    )
    reference.assert_trains_as(run, theirs, at_least=16 * 8)
    seen = run.watched("credit1")["signals"]
    assert (seen.teacher_logprob - seen.student_logprob)[seen.mask].abs().mean() > 0.1, "another model's"
