"""Whether two versions of the package give the same numbers, bit for bit: fingerprints of short runs, compared.

    python benchmarks/same_numbers.py before.json     # in the checkout of the one version
    python benchmarks/same_numbers.py after.json      # in that of the other
    diff before.json after.json

Every run is a command of the package (``gear demo``, ``gear train``), so the script depends on no module of it
and is the same file for both versions. A fingerprint is taken of the logged metrics, the recorded credit of every
token and the final weights; clocks and versions are left out. Both files must come from one machine: the last
bits of a float depend on the processor. Uses the ``gear_rl`` that the interpreter finds (set PYTHONPATH to
choose). Takes about 6 minutes on one core, since runs are forked from a process that has the libraries loaded; a
word behind the file chooses runs by name.
"""

import hashlib
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

GEAR = [sys.executable, "-c", "from gear_rl.cli import main; main()"]
LIBRARIES = ["torch", "transformers", "datasets", "peft", "trl.trainer.grpo_trainer"]
"""Loaded once; the package itself is loaded by every run."""
TASKS = ("chain", "codebook", "errands")
TOOLS = ("errands",)
"""Tasks that call tools."""
TURNS = ("gigpo", "mt_grpo", "igpo", "serl", "agent_opsd", "step_scores")
"""Methods that tell turns apart: they train tasks with tools alone."""
CLOCKS = ("seconds", "time", "runtime", "per_second", "versions", "threads", "output_dir")
"""Parts of names whose values differ between two runs of one version."""
VARIANTS: dict[str, tuple[str, list[str]]] = {
    "gear, two micro-batches": ("gear", ["--gradient_accumulation_steps", "2"]),
    "gear, old log-probs": ("gear", ["--num_iterations", "2"]),
    "gear, ema teacher": ("gear", ["--teacher_model_kind", "ema"]),
    "gear, contrast": (
        "gear",
        ["--teacher_contrast", "sibling", "--privileged_sources", "[sibling, row]"],
    ),
    "gear, spliced prompt": ("gear", ["--teacher_prompt", "splice", "--teacher_skip_first_tokens", "2"]),
    "gear, GSPO ratio on cispo": (
        "gear",
        ["--loss_type", "cispo", "--importance_sampling_level", "sequence"],
    ),
}
DEMOS: dict[str, list[str]] = {
    "demo chain": ["--seed", "0"],
    "demo errands": ["--task", "errands", "--seed", "0", "--steps", "5"],
}


def main(out: Path, only: str = "") -> None:
    """Run all whose names contain ``only`` and add their fingerprints to the file."""
    taken: dict[str, dict[str, str]] = json.loads(out.read_text()) if out.exists() else {}
    os.environ |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(LIBRARIES)
    listed = subprocess.run([*GEAR, "methods", "--json"], capture_output=True, check=True)
    methods = [row["name"] for row in json.loads(listed.stdout)]
    runs: dict[str, list[str]] = {name: ["demo", *more] for name, more in DEMOS.items()}
    for task in TASKS:
        # crpo wants two reward functions, which chain alone has
        left_out = {*(() if task in TOOLS else TURNS), *(() if task == "chain" else ("crpo",))}
        names = [name for name in methods if name not in left_out]
        runs |= {f"{task}: {name}": training(task, name, []) for name in names}
    runs |= {f"chain: {name}": training("chain", method, more) for name, (method, more) in VARIANTS.items()}
    for name, arguments in runs.items():
        if only not in name or name in taken:
            continue
        print(f"{name} ...", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            if arguments[0] == "train":
                arguments += ["--output_dir", folder, "--record_file", f"{folder}/records.jsonl"]
            else:
                arguments += ["--out", folder]
            log = out.with_suffix(".log")
            process = context.Process(target=run_gear, args=(arguments, log))
            process.start()
            process.join()
            if process.exitcode not in (0, 2):
                sys.exit(log.read_text(errors="replace")[-6000:])
            refused = {"refused": "with one clear error"}
            taken[name] = refused if process.exitcode else fingerprints(Path(folder))
        out.write_text(json.dumps(taken, indent=1) + "\n")


def run_gear(arguments: list[str], log: Path) -> None:
    """The command in this process, which exits with its status; what it prints goes to the file."""
    with log.open("w") as output:
        for stream in (1, 2):
            os.dup2(output.fileno(), stream)
    sys.argv = ["gear", *arguments]
    from gear_rl.cli import main as gear

    gear()


def training(task: str, method: str, more: list[str]) -> list[str]:
    """The arguments of ``gear`` for three steps of a method on a task of the arena."""
    tools = task in TOOLS
    credit = ["--credit.name", method]
    if method == "fixed_spans":
        credit += ["--credit.span_tokens", "4"]
    reward = "[arena, 'gear_rl.arena.chain:steps_reward']" if method == "crpo" else "arena"
    return [
        *("train", "--model", "arena", "--dataset", f"arena/{task}/easy"),
        *(("--environment", "arena") if tools else ("--reward", reward)),
        *credit,
        *("--max_steps", "3", "--seed", "1", "--learning_rate", "1e-3", "--num_generations", "4"),
        *("--per_device_train_batch_size", "8" if tools else "16", "--max_completion_length", "96"),
        *("--logging_steps", "1", "--save_strategy", "steps", "--save_steps", "3"),
        *more,
    ]


def fingerprints(folder: Path) -> dict[str, str]:
    """A digest of each thing that a run has left."""
    digests: dict[str, str] = {}
    for path in sorted(folder.rglob("*")):
        if path.name == "trainer_state.json":
            digests["metrics"] = digest_of(json.loads(path.read_text())["log_history"])
        elif path.name == "records.jsonl":
            digests["records"] = digest(path.read_bytes())
        elif path.suffix == ".safetensors" and "checkpoint-3" in path.parts:
            digests[path.name] = digest(path.read_bytes())
    return digests


def without_clocks(value: Any) -> Any:
    """The same value without what differs between two runs of one version."""
    if isinstance(value, dict):
        return {k: without_clocks(v) for k, v in value.items() if not any(clock in k for clock in CLOCKS)}
    return [without_clocks(item) for item in value] if isinstance(value, list) else value


def digest_of(value: Any) -> str:
    return digest(json.dumps(without_clocks(value), sort_keys=True).encode())


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:3])
