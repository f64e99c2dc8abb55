"""The same rollouts outside of verl: the credit step in this process, and TRL's trainer in its own."""

import dataclasses
import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer, Qwen3ForCausalLM

import gear_rl
from gear_rl.credit.credit_config import CreditConfig
from gear_rl.credit.step import step
from gear_rl.method_builder import build_method
from gear_rl.rollouts import RolloutBatch
from support.batches import PlainEngine
from verl_cpu.harness import Run

TRL_PYTHON = os.environ.get("TRL_PYTHON", "")
"""The interpreter of an environment with TRL, which cannot be this one."""


class EngineWithTools(PlainEngine):
    """Shows the teacher the tools that the student saw."""

    tools: list[Any] | None = None

    def render(self, prompts: Sequence[Any], chat_template_kwargs: Any) -> list[list[int]]:
        options = {"tools": self.tools, **(chat_template_kwargs or {})}
        return super().render(prompts, options)


def credited(
    batch: Mapping[str, Any], model: Path, method: str, tools: list[Any] | None = None
) -> dict[str, Any]:
    """What the credit step makes of the rollouts of a run, with the weights in a folder: its `CreditResult`."""
    assigner = build_method(method)
    config = CreditConfig(teacher_model_kind="live").resolved(assigner)
    weights = Qwen3ForCausalLM.from_pretrained(model, local_files_only=True).eval()
    engine = EngineWithTools(AutoTokenizer.from_pretrained(model), weights)
    engine.tools = tools
    result = step(RolloutBatch(**batch), assigner, engine, config)
    return {field.name: getattr(result, field.name) for field in dataclasses.fields(result)}


def under_trl(
    saved: Path, model: Path, out: Path, credit: str = "gear", tools: Sequence[Any] = (), **settings: Any
) -> dict[str, Any]:
    """What TRL's trainer makes of the same with a method, and its loss; skips the test without an interpreter."""
    if not TRL_PYTHON:
        pytest.skip("TRL_PYTHON names no interpreter with TRL")
    options = {"credit": credit, "tools": [*tools], "settings": settings}
    command = [TRL_PYTHON, Path(__file__).with_name("under_trl.py"), saved, model, out, json.dumps(options)]
    paths = {"PYTHONPATH": str(Path(gear_rl.__file__).parents[1]), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [*map(str, command)], capture_output=True, text=True, timeout=300, env=os.environ | paths
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return torch.load(out, weights_only=False)


def assert_same(ours: Mapping[str, Any], theirs: Mapping[str, Any], *, at_least: int) -> None:
    """Divergence, credit and segments of the same rollouts, of which so many were scored.

    Another processor's kernels alone move a divergence by 1e-5, and the credit by 4e-6.
    """
    scored, mask = ours["scored_B"], ours["signals"].mask
    assert torch.equal(scored, theirs["scored_B"]) and scored.sum() >= at_least
    assert torch.equal(mask, theirs["signals"].mask)
    mask = mask & scored[:, None]
    one, other = ours["signals"].divergence, theirs["signals"].divergence
    assert one[mask].max() > 1  # the teacher disagrees somewhere
    assert gap(one, other, mask) <= 1e-4
    assert torch.equal(ours["credit"].segment_id, theirs["credit"].segment_id)
    torch.testing.assert_close(ours["credit"].advantage, theirs["credit"].advantage, atol=1e-5, rtol=1e-5)


def assert_trains_as(run: Run, theirs: Mapping[str, Any], *, at_least: int, atol: float = 1e-4) -> None:
    """The first step of a run: its signals, its credit and its loss are those of another trainer."""
    ours = run.watched("credit1")
    scored, mask = ours["scored_B"], ours["signals"].mask
    assert torch.equal(scored, theirs["scored_B"]) and scored.sum() >= at_least
    assert (
        torch.equal(mask, theirs["signals"].mask)
        and ours["signals"].values.keys() == theirs["signals"].values.keys()
    )
    for name, values in ours["signals"].values.items():
        other = theirs["signals"].values[name]
        if values.shape == mask.shape:
            assert gap(values, other, mask & scored[:, None]) <= atol, name
        elif not name.startswith("group"):  # whose numbers are names
            torch.testing.assert_close(values, other, atol=atol, rtol=0, msg=name)
    credit = ours["credit"].advantage
    torch.testing.assert_close(credit, theirs["credit"].advantage, atol=atol, rtol=atol)
    assert run.column("actor/pg_loss")[0] == pytest.approx(theirs["loss"], abs=atol)
    plain = torch.where(mask, ours["batch"]["advantage_B"][:, None], 0.0)
    assert (credit - plain).abs().max() > 100 * atol, "GRPO would agree, too"


def by_rollout(saved: Mapping[str, Any]) -> dict[tuple[int, ...], dict[str, torch.Tensor]]:
    """Signals and credit by problem and sampled tokens: rollouts come in another order in every run."""
    batch, signals, rows = saved["batch"], saved["signals"], {}
    for b, kept in enumerate(batch["completions"].mask):
        key = (batch["rows"][b]["index"], *batch["completions"].ids[b][kept].tolist())
        rows[key] = {name: getattr(signals, name)[b][kept] for name in ("divergence", "student_logprob")}
        rows[key]["advantage"] = saved["credit"].advantage[b][kept]
    return rows


def gap(one: torch.Tensor, other: torch.Tensor, mask: torch.Tensor) -> float:
    """How far two signals are apart at most, in shares of themselves where they exceed one nat.

    In float32 a log-probability or a divergence of some nats is itself only right to 2e-5.
    """
    return float(((one - other).abs() / other.abs().clamp_min(1))[mask].max())
