"""Full fine-tuning with GEAR's frozen teacher on two processes: the credit is that of one process."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, Qwen3ForCausalLM

from engines import tiny
from gear_rl import CreditConfig, Gear, LocalEngine, token_advantages
from gear_rl.records import read_records

TESTS = Path(__file__).parents[1]


@pytest.fixture(scope="module", params=["zero2", "zero3", "fsdp2"])
def finished(request, tiny_model, tmp_path_factory):
    """How the weights were divided, and the folder that two processes have left."""
    folder = tmp_path_factory.mktemp(request.param)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    command += [str(Path(__file__).with_name("worker.py")), tiny_model, str(folder), request.param]
    paths = [str(TESTS), str(TESTS.parent / "src"), os.environ.get("PYTHONPATH", "")]
    own = {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"}
    own["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # ninja
    done = subprocess.run(
        command, env=os.environ | own, capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return request.param, folder


def student_of(how: str, folder: Path, step: int, model: str):
    """The weights that step was sampled with; None where no file holds them whole."""
    if step == 1:
        return Qwen3ForCausalLM.from_pretrained(model, dtype=torch.float32)
    whole = folder / "run" / f"checkpoint-{step - 1}"
    return None if how == "fsdp2" else Qwen3ForCausalLM.from_pretrained(whole, dtype=torch.float32)


def test_the_credit_is_that_of_one_process(finished, tiny_model):
    how, folder = finished
    fast = AutoTokenizer.from_pretrained(tiny_model)
    teacher = Qwen3ForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    every = {row["prompt"][0]["content"]: row for row in tiny.rows(12)}
    compared, worst = 0, 0.0
    for step in (1, 2, 3):
        student = student_of(how, folder, step, tiny_model)
        records = [r for r in read_records(folder / "whole.jsonl") if r.step == step and r.signals]
        if student is None:
            continue
        engine = LocalEngine(student.eval(), fast, teacher_model=teacher.eval())
        rows = [next(row for text, row in every.items() if f"\n{text}<" in r.prompt) for r in records]
        rollouts = engine.rollouts(rows, [r.ids for r in records], [r.advantage for r in records])
        alone = token_advantages(rollouts, Gear(), engine, CreditConfig())
        for b, record in enumerate(records):
            count = len(record.ids)
            for ours, theirs in (
                (record.credit, alone.credit.advantage[b, :count]),
                (record.signals["divergence"], alone.signals.divergence[b, :count]),
            ):
                gap = (torch.tensor(ours) - theirs).abs() / theirs.abs().clamp(min=1)
                worst, compared = max(worst, float(gap.max())), compared + count
    print(f"{how}: {compared} numbers, at most {worst:.1e} apart")
    assert compared > 100 and worst < 1e-5


def test_the_teacher_is_divided_and_a_resumed_run_ends_where_the_whole_one_does(finished):
    how, folder = finished
    whole, resumed = (json.loads((folder / f"{name}.json").read_text()) for name in ("whole", "resumed"))
    assert whole["sharding"] == ("FSDP" if how == "fsdp2" else "DEEPSPEED")
    total = sum(p.numel() for p in tiny.model(len(tiny.tokenizer())).parameters())
    if how == "zero2":
        assert whole["held"] == total, "whole, as the model is"
    else:
        assert whole["held"] < 0.7 * total
    last, again = whole["history"][-1], resumed["history"][-1]
    assert last["step"] == again["step"] == 3
    for name in ("loss", "grad_norm", "reward", "gear/divergence/mean"):
        assert again[name] == pytest.approx(last[name], rel=1e-5, abs=1e-7), name
