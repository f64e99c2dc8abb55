"""``forms`` on a GPU in minutes: a warm-up, the gate, then the rows, a process for each core.

    python -m benchmarks.gpu.forms warm RUNS --model smollm2
    python -m benchmarks.gpu.forms gate RUNS --jobs 16
    python -m benchmarks.gpu.forms rows RUNS --jobs 16 --rates gate --seconds 480
    python -m benchmarks.gpu.forms score RUNS --n 64 --context sentences

The gate, fixed before any run of it: three seeds at two rates; the task counts only if the interval of the lead
of perfect credit over GRPO, each at its best rate, lies above 0. Rows then run at the two rates that suit GRPO
best (``--rates gate``). Nothing is tuned on other seeds, so a table shows both rates.

What was tried: on an H100 the warm-up takes 85 seconds and two runs side by side 65 seconds each. With 16
completions a backward pass a process takes over 6.3 GB, so 13 do not fit; a pass has eight now. On two CPU cores
(``--items 7 --steps 8 --rollouts 16 --n 96``) the warm-up takes 23 minutes and two runs side by side 12 to 16.
``results/README.md`` says what the gate showed, at which rates, and how the reference changed.

``--agent`` has an agent fill in several forms by calls of a tool (``benchmarks/form_calls.py``). Its gate
has not run. After 32 steps of warm-up (20 minutes) it has 0.60 of the fields of 32 forms right; then one step
with 16 rollouts took 6.6 minutes of a core (float32, a CPU with AVX2 alone), and we stopped after three.

Runs that are finished in the folder are not repeated; ``cells.jsonl`` has a line for each. ``--steps``,
``--rollouts`` and ``--n`` cut the sizes down, to try it on a CPU.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportPrivateUsage=false, reportUnknownLambdaType=false

import argparse
import json
import math
import os
import statistics
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks import form_calls, forms
from gear_rl.arena.task import Case
from gear_rl.credit.credit_config import CreditConfig
from gear_rl.credit.own_loop import LocalEngine
from gear_rl.engine import token_places
from gear_rl.engines.models import load_causal_lm, load_tokenizer
from gear_rl.engines.trl.templates import read_template
from gear_rl.errors import InputError
from gear_rl.lab.cell_processes import run_cells
from gear_rl.lab.cells import Cell, plain_fields
from gear_rl.lab.lineup import parse_methods
from gear_rl.lab.material import Material, Pair
from gear_rl.lab.run_plan import plan_of_run
from gear_rl.lab.scoring import score
from gear_rl.lab.spec import Spec, finished_cell, read_cells
from gear_rl.lab.statistics import mean_interval
from gear_rl.runs.model_wheels import resolve_model
from gear_rl.runs.run_config import RunConfig

GATE = ("truth=benchmarks.forms:FieldTruth",)
GATE_RATES = (2e-4, 4e-4)
ROWS = (
    "gear", "tokens=gear:tokens", "plain=gear:plain", "rlsd", "shuffled",
    "low_logprob=benchmarks.forms:LowLogprob",
    "neg_only=gear:sign_mode=neg_only", "sft", "slips=benchmarks.slips:Slips", "random_onsets", "opsd",
    "sft_then_grpo=uniform:sft=0.5", "sft_then_gear=gear:sft=0.5", "more=uniform:rollouts=40",
)  # fmt: skip
AGENT_PARTS = {
    "gate": ("truth=benchmarks.form_calls:CallTruth", "decisions=benchmarks.form_calls:CallTruth:blind=true"),
    "rows": (
        "gear", "tokens=gear:tokens", "gigpo", "gigpo_turns=gigpo:turn_rewards=true", "mt_grpo", "agent_opsd",
        "shuffled",
    ),
}  # fmt: skip
CONTEXTS = (
    "quarter_false=gear:privileged_column=quarter_false", "sentences=gear:privileged_column=sentences",
    "sibling=gear:privileged_sources=[sibling]", "sft_quarter_false=sft:privileged_column=quarter_false",
    "sft_sentences=sft:privileged_column=sentences",
)  # fmt: skip
"""What the teacher is shown, and what is imitated, in place of the solution."""
SCORED = (
    "gear", "gear:tokens", "gear:tokens,aftermath=0", "gear:plain", "rlsd", "slips=benchmarks.slips:Slips",
    "low_logprob=benchmarks.forms:LowLogprob",
)  # fmt: skip


def main() -> None:
    """Run one of the parts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=("warm", "gate", "rows", "contexts", "score"))
    parser.add_argument("runs", type=Path)
    parser.add_argument("--agent", action="store_true", help="forms by calls of a tool")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--dtype", default="bfloat16", help="float32 is faster on a CPU without AVX-512 BF16")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--rates", default="")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument(
        "--methods", default="", help="of rows, contexts or score in place of its own, with spaces"
    )
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--warm-steps", type=int, default=64)
    parser.add_argument("--rollouts", type=int, default=32)
    parser.add_argument("--context", default="solution", help="the column that the teacher of score is shown")
    parser.add_argument("--n", type=int, default=192, help="held-out prompts")
    parser.add_argument("--items", type=int, help="of each family, in place of all for training")
    parser.add_argument(
        "--seconds", type=float, default=math.inf, help="runs that are not done by then are left"
    )
    given = parser.parse_args()
    if given.methods and given.part == "gate":
        parser.error("gate has its own methods")
    if given.agent and given.part in ("score", "contexts"):
        parser.error(f"{given.part} has no --agent")
    if given.part == "score":
        methods = parse_methods(given.methods.split() or SCORED)
        command = " ".join(["python -m benchmarks.gpu.forms", *sys.argv[1:]])
        scored = score(methods, own_mistakes(given.runs, given.n, given.context))
        print(json.dumps({"command": command, **scored}, indent=1))
        return
    forms.write_rows(given.runs, given.items, (form_calls if given.agent else forms).rows)
    if given.part == "warm":
        warm_up(given.runs, given)
        return
    if given.seconds < math.inf:  # the finished ones are in the folder
        timer = threading.Timer(given.seconds, lambda: (collect_cells(given.runs), os._exit(0)))
        timer.daemon = True
        timer.start()
    if given.rates == "gate":
        rates = best_rates(given)
    else:
        rates = [float(rate) for rate in given.rates.split(",") if rate] or list(GATE_RATES)
    line_ups = AGENT_PARTS if given.agent else {"gate": GATE, "rows": ROWS, "contexts": CONTEXTS}
    methods = given.methods.split() or line_ups[given.part]
    seeds = [int(seed) for seed in given.seeds.split(",")]
    specs = specs_of(given, methods, seeds, rates)
    begin = time.perf_counter()

    def each(cell: Cell) -> None:
        ends = cell.ends("reward")
        result = cell.error if ends is None else f"{ends[0]:.3f} -> {ends[1]:.3f}"
        at = f"{time.perf_counter() - begin:.0f} s: {cell.method} {cell.rate:g} seed {cell.seed}"
        print(f"{at}: {result}  ({cell.seconds or 0:.0f} s)", flush=True)

    cells = run_cells(specs, given.runs / "cells", jobs=given.jobs, each=each)
    collect_cells(given.runs)
    if given.part == "gate":
        text, lead = gate_of(cells)
        print(text)
        sys.exit(0 if lead is not None and lead[0] > 0 else 1)


def specs_of(given: Any, methods: Sequence[str], seeds: Sequence[int], rates: Sequence[float]) -> list[Spec]:
    """The runs of all methods, seed by seed and rate by rate; GRPO is among them."""
    cuda, accumulated, agent = torch.cuda.is_available(), 4, given.agent
    run = RunConfig(
        model=str(given.runs / "merged"),
        dataset=str(given.runs / "train.jsonl"),
        eval_dataset=str(given.runs / "test.jsonl"),
        reward=None if agent else "benchmarks.gpu.decoding:reward" if cuda else "benchmarks.forms:reward",
        environment="benchmarks.form_calls:FormDesk" if agent else None,
        lora={"r": 32, "lora_alpha": 64, "target_modules": "all-linear"},
        trainer={
            "gradient_checkpointing": False,
            "bf16": False,
            "model_init_kwargs": {"dtype": given.dtype},
            "lr_scheduler_type": "constant",
            "per_device_train_batch_size": given.rollouts // accumulated,
            "gradient_accumulation_steps": accumulated,
            "num_generations": 8,
            "max_completion_length": 400 if agent else 176,
            "success_reward": 0.5 if agent else 1.0,  # for agent_opsd: no rollout has every field right
            "per_device_eval_batch_size": 48,
            "privileged_column": "solution",
            "max_steps": given.steps,
        },
    )
    plan = plan_of_run(
        run, methods, seeds=1 + max(seeds), steps=given.steps, rates=1, n_eval=given.n, samples=1
    )
    specs = [
        replace(spec, between=False)
        for rate in rates
        for spec in plan.reported_specs(dict.fromkeys(plan.methods, rate))
        if spec.seed in seeds
    ]
    order = list(plan.methods)  # whole seeds, where time runs out
    return sorted(specs, key=lambda spec: (spec.seed, order.index(spec.name)))


def collect_cells(runs: Path) -> list[Cell]:
    """The finished runs, sorted by their file's name; ``cells.jsonl`` gets a line for each."""
    done = [cell for cell in read_cells(runs / "cells") if cell.error is None]
    lines = (json.dumps(plain_fields(cell)) + "\n" for cell in done)
    (runs / "cells.jsonl").write_text("".join(lines), encoding="utf-8")
    return done


def final_rewards(cells: Sequence[Cell]) -> dict[tuple[str, float | None], dict[int, float]]:
    """The held-out reward after training, by method and rate, by seed."""
    by_run: dict[tuple[str, float | None], dict[int, float]] = {}
    for cell in cells:
        ends = cell.ends("reward")
        if ends is not None:
            by_run.setdefault((cell.method, cell.rate), {})[cell.seed] = ends[1]
    return by_run


def best_rates(given: Any) -> list[float]:
    """The two rates at which GRPO ends highest in the gate of these sizes, of three seeds; the better first."""
    folder = given.runs / "cells"
    tried = sorted({cell.rate for cell in read_cells(folder) if cell.rate is not None})
    cells = [cell for spec in specs_of(given, (), range(3), tried) if (cell := finished_cell(spec, folder))]
    ends = final_rewards(cells)
    means = {rate: statistics.fmean(seeds.values()) for (_, rate), seeds in ends.items() if rate is not None}
    if not means:
        raise InputError("--rates: gate; GRPO finished no run of these sizes; run the gate with them first")
    return sorted(means, key=means.__getitem__, reverse=True)[:2]


def gate_of(cells: Sequence[Cell]) -> tuple[str, tuple[float, float] | None]:
    """The lead of perfect credit over GRPO, each at its best rate: a report, and the 95% interval over seeds."""
    by_run = final_rewards(cells)
    text, best = list[str](), dict[str, dict[int, float]]()
    for (method, rate), seeds in sorted(by_run.items()):
        mean = statistics.fmean(seeds.values())
        text.append(f"{method} {rate:g}: {mean:.3f} {[*seeds.values()]}")
        if method not in best or mean > statistics.fmean(best[method].values()):
            best[method] = seeds
    shared = sorted({*best.get("truth", {})} & {*best.get("uniform", {})})
    if not shared:
        why = "gate: truth and uniform finished no seed both; run the same command again"
        return "\n".join([*text, why]), None
    lead = [best["truth"][seed] - best["uniform"][seed] for seed in shared]
    interval = mean_interval(lead)
    return "\n".join([*text, f"lead {statistics.fmean(lead):+.3f}, interval {interval}"]), interval


def warm_up(runs: Path, given: Any) -> None:
    """Fine-tune on forms of other items, save the merged model and print the share that it has right.

    Half of the demonstrations have the solution in the prompt, so that the teacher goes on reading it.
    """
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import set_seed
    from trl.trainer.sft_config import SFTConfig
    from trl.trainer.sft_trainer import SFTTrainer

    from examples.sft_warmup import demonstrations

    cuda, agent = torch.cuda.is_available(), given.agent
    folder = resolve_model(given.model)
    rows, asked = forms.rows("warm", 512), forms.rows("train", 64, items=given.items)
    for row in (*rows, *asked):
        row["prompt"] = [{"role": "user", "content": row["prompt"]}]
    set_seed(0)
    tokenizer = load_tokenizer(folder)
    if agent:
        tokenizer.chat_template = read_template("qwen3_instruct_2507")
    shown = form_calls.demonstrations(512) if agent else demonstrations(rows, "solution", 0.5)
    trainer: Any = SFTTrainer(
        model=load_causal_lm(folder, {"dtype": given.dtype}),
        processing_class=tokenizer,
        train_dataset=Dataset.from_list(shown),
        peft_config=LoraConfig(r=32, lora_alpha=64, target_modules="all-linear", task_type="CAUSAL_LM"),
        args=SFTConfig(
            output_dir=str(runs / "warm"), seed=0, max_steps=given.warm_steps,
            per_device_train_batch_size=8 if cuda else 4,
            learning_rate=8e-4, warmup_steps=4, lr_scheduler_type="constant_with_warmup", bf16=False,
            use_cpu=not cuda, gradient_checkpointing=False, completion_only_loss=True, assistant_only_loss=agent,
            logging_steps=4, save_strategy="no", report_to="none", disable_tqdm=True,
        ),
    )  # fmt: skip
    trainer.train()
    if not agent:
        print(f"share right, sampled on training items: {sampled_share(trainer.model, tokenizer, asked):.3f}")
    trainer.model.merge_and_unload().save_pretrained(runs / "merged")
    tokenizer.save_pretrained(runs / "merged")


def own_mistakes(runs: Path, n: int, context: str = "solution") -> Material:
    """A sampled answer to each of ``n`` held-out forms, beside the solution; the decisions are its values.

    The fault of a wrong value is the token in which it departs from the right one. The teacher sees the column
    ``context``.
    """
    folder = str(runs / "merged")
    model, tokenizer = load_causal_lm(folder, {"dtype": "bfloat16"}), load_tokenizer(folder)
    rows = [json.loads(line) for line in (runs / "test.jsonl").read_text(encoding="utf-8").splitlines()[:n]]
    for row in rows:
        row["prompt"] = [{"role": "user", "content": row["prompt"]}]
    torch.manual_seed(0)
    engine, answers = LocalEngine(model, tokenizer), sampled_ids(model, tokenizer, rows)
    pairs = list[Pair]()
    for row, ids in zip(rows, answers, strict=True):
        text = tokenizer.decode(ids, skip_special_tokens=True)
        is_right = forms.right_tokens(token_places(tokenizer, ids), forms.values(text, row["solution"]))
        solution = tokenizer.encode(row["solution"], add_special_tokens=False)
        case = Case(
            row=row,
            faulty=[ids],
            right=[[*solution, tokenizer.eos_token_id]],
            fault={t for t, right in is_right.items() if not right},
            choices=tuple(t in is_right for t in range(len(ids))),
        )
        pairs.append(Pair(case=case, row=row, messages=(text, row["solution"])))
    others = [{**row, context: rows[b - 1][context]} for b, row in enumerate(rows)]
    return Material(
        engine=engine,
        config=CreditConfig(privileged_column=context),
        batch=16,
        pairs=pairs,
        blind=[replace(pair, row=row) for pair, row in zip(pairs, others, strict=True)],
        rewards=_rewards_of,
        about={
            "what": "absolute credit on sampled answers; the faults are where values depart from the right ones",
            "n": len(rows),
        },
    )


def _rewards_of(pairs: Sequence[Pair], credit: Mapping[str, Any]) -> torch.Tensor:
    return torch.tensor(
        [[value] for pair in pairs for value in forms.reward(pair.messages, [pair.case.row["solution"]] * 2)]
    )


def sampled_share(model: Any, tokenizer: Any, rows: Sequence[dict[str, Any]]) -> float:
    """The share of fields that one sampled answer to each row has right."""
    answers = tokenizer.batch_decode(sampled_ids(model, tokenizer, rows), skip_special_tokens=True)
    return statistics.fmean(forms.reward(answers, [row["solution"] for row in rows]))


@torch.no_grad()
def sampled_ids(model: Any, tokenizer: Any, rows: Sequence[dict[str, Any]]) -> list[list[int]]:
    """The tokens of one sampled answer to each row, with the one that ends it."""
    texts = [
        tokenizer.apply_chat_template(row["prompt"], add_generation_prompt=True, tokenize=False)
        for row in rows
    ]
    inputs = tokenizer(
        texts, return_tensors="pt", padding=True, padding_side="left", add_special_tokens=False
    )
    model.eval()
    out = model.generate(**inputs.to(model.device), max_new_tokens=176, do_sample=True, top_k=0)
    model.train()
    answers = out[:, inputs["input_ids"].shape[1] :].tolist()
    end = tokenizer.eos_token_id
    return [ids[: ids.index(end) + 1] if end in ids else ids for ids in answers]


if __name__ == "__main__":
    main()
