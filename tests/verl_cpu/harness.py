"""Runs stock `python -m verl.trainer.main_ppo` on this machine's CPU, and reads what it logged.

Every run is a process of its own with a Ray of its own, ends within a limit, and leaves no process behind.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil
import torch

HERE = Path(__file__).parent
MARK = "GEAR_VERL_RUN"
"""The environment variable that all processes of a run have in common, Ray's and vLLM's included."""
ENVIRONMENT = {
    "VERL_PLATFORM": "cpu",
    "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1",
    "RAY_DISABLE_DASHBOARD": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_worker_niceness": "0",  # Ray's 15 would have a run wait for whatever else this machine does
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # vLLM would tie each replica to cores that others need as well
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARN",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
    "PYTHONUNBUFFERED": "1",
    "SPT_NOENV": "1",  # Ray renames its workers; without this over their environment, and so over our mark
}


ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
FLOAT32 = "{param_dtype: fp32, reduce_dtype: fp32, buffer_dtype: fp32}"
SETTINGS = [
    "data.seed=1",
    "data.max_prompt_length=64",
    "data.max_response_length=32",
    "data.dataloader_num_workers=0",
    "data.filter_overlong_prompts=False",
    "reward.num_workers=1",
    f"reward.custom_reward_function.path={HERE}/tasks.py",
    "algorithm.adv_estimator=grpo",
    "algorithm.use_kl_in_reward=False",
    # Without flash attention a pass over packed rows has a mask of their whole length squared.
    "actor_rollout_ref.model.use_remove_padding=False",
    "actor_rollout_ref.model.enable_gradient_checkpointing=False",
    "+actor_rollout_ref.model.override_config.attn_implementation=sdpa",
    f"{ACTOR}.strategy=fsdp2",
    f"{ACTOR}.optim.lr=1e-4",
    f"{ACTOR}.ppo_micro_batch_size_per_gpu=32",
    f"{ACTOR}.use_kl_loss=False",
    f"{ACTOR}.use_torch_compile=False",
    f"{ACTOR}.fsdp_config.use_torch_compile=False",
    f"+{ACTOR}.fsdp_config.mixed_precision={FLOAT32}",
    f"+actor_rollout_ref.ref.fsdp_config.mixed_precision={FLOAT32}",
    f"{ROLLOUT}.name=vllm",
    f"{ROLLOUT}.dtype=float32",
    f"{ROLLOUT}.load_format=auto",
    f"{ROLLOUT}.tensor_model_parallel_size=1",
    f"{ROLLOUT}.enforce_eager=True",
    f"{ROLLOUT}.free_cache_engine=False",
    f"+{ROLLOUT}.enable_sleep_mode=False",
    f"{ROLLOUT}.max_model_len=128",
    f"{ROLLOUT}.max_num_seqs=64",
    f"{ROLLOUT}.max_num_batched_tokens=1024",
    f"{ROLLOUT}.gpu_memory_utilization=0.1",
    f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu=32",
    f"{ROLLOUT}.agent.num_workers=1",
    f"{ROLLOUT}.agent.agent_loop_config_path={HERE}/agent_loops.yaml",
    f"{ROLLOUT}.checkpoint_engine.update_weights_bucket_megabytes=16",
    f"+{ROLLOUT}.engine_kwargs.vllm.worker_cls=verl_on_cpu.rollout.ReloadableCPUWorker",
    "trainer.device=cpu",
    "trainer.nnodes=1",
    "trainer.logger=[console,file]",
    "trainer.val_before_train=False",
    "trainer.test_freq=-1",
    "trainer.save_freq=-1",
    "trainer.resume_mode=disable",
    "trainer.total_epochs=100",
    "transfer_queue.backend.SimpleStorage.num_data_storage_units=1",
    "+ray_kwargs.ray_init.address=local",
    "ray_kwargs.ray_init.num_cpus=12",  # Ray only counts: enough for all its small actors at once
    "+ray_kwargs.ray_init.include_dashboard=False",
    "+ray_kwargs.ray_init.object_store_memory=200000000",
]
"""What every run here has in common: a small model in float32 on CPUs."""

SEEDED = f"{ROLLOUT}.agent.default_agent_loop=seeded"
"""Two runs with this sample the same rollouts, as long as their weights are the same."""
GEAR = ["trainer.v1.trainer_mode=gear_sync", "+gear.credit=gear", "+gear.teacher=live"]


def settings(task: Path, *, steps: int, ranks: int, rollouts: tuple[int, int]) -> list[str]:
    """The command line of a run: `rollouts` is how many prompts, and completions of each, make one step."""
    prompts, completions = rollouts
    return [
        *SETTINGS,
        f"data.train_files={task}/train.parquet",
        f"data.val_files={task}/train.parquet",
        f"data.train_batch_size={prompts}",
        f"actor_rollout_ref.model.path={task}/model",
        f"{ACTOR}.ppo_mini_batch_size={prompts}",
        f"{ROLLOUT}.n={completions}",
        f"trainer.n_gpus_per_node={ranks}",
        f"trainer.total_training_steps={steps}",
        f"+ray_kwargs.ray_init.num_gpus={ranks}",
    ]


class RunFailedError(AssertionError):
    """A run that did not end well: says how, and shows the end of its log."""


@dataclass
class Training:
    """A run of verl while it goes on. Leaving the context ends every process of it."""

    folder: Path
    """Where the log, the metrics and what the run writes are."""
    command: Sequence[str]
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)

    def __enter__(self) -> Training:
        self.folder.mkdir(parents=True, exist_ok=True)
        # Ray's sockets lie in this folder, and the path of a socket may have no more than 107 characters.
        self.ray = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))
        self.started = time.monotonic()
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*self.command, f"+ray_kwargs.ray_init._temp_dir={self.ray}"],
                cwd=self.folder,
                env=self._variables(),
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in processes(self.mark):
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait()
        shutil.rmtree(self.ray, ignore_errors=True)

    def _variables(self) -> dict[str, str]:
        """The environment of the run: this one's, without what a pytest or another Ray has left in it."""
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "VLLM_", "VERL_"))}
        own = {
            MARK: self.mark,
            "GEAR_VERL_WATCH": str(self.folder),
            "VERL_FILE_LOGGER_PATH": str(self.folder / "metrics.jsonl"),
        }
        return inherited | ENVIRONMENT | own

    @property
    def log(self) -> Path:
        """Everything that the run and its workers printed."""
        return self.folder / "log.txt"

    @property
    def seconds(self) -> float:
        """Since the start."""
        return time.monotonic() - self.started

    def steps(self) -> list[dict[str, float]]:
        """The metrics of each step so far, as verl's file logger wrote them."""
        path = self.folder / "metrics.jsonl"
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
        entries = [json.loads(line) for line in lines if line.endswith("\n")]
        return [entry["data"] for entry in entries if entry["step"] > 0]

    def tail(self, lines: int = 40) -> str:
        """The end of the log."""
        return "\n".join(self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])

    def wait_for_step(self, number: int, *, limit: float) -> None:
        """Return once that step is logged. Raises RunFailedError where the run ends or takes longer before."""
        while len(self.steps()) < number:
            if self.process.poll() is not None:
                raise self.failed(f"ended with {self.process.returncode} before step {number}")
            if self.seconds > limit:
                raise self.failed(f"had {len(self.steps())} of {number} steps after {limit:.0f} s")
            time.sleep(0.2)

    def wait(self, *, limit: float) -> int:
        """The exit status. Raises RunFailedError where there is none within so many seconds of the start."""
        try:
            return self.process.wait(timeout=max(0.0, limit - self.seconds))
        except subprocess.TimeoutExpired:
            raise self.failed(f"was not over after {limit:.0f} s") from None

    def run(self) -> Run:
        """What is kept of it."""
        log = self.log.read_text(encoding="utf-8", errors="replace")
        return Run(folder=self.folder, steps=self.steps(), seconds=self.seconds, log=log, mark=self.mark)

    def failed(self, why: str) -> RunFailedError:
        return RunFailedError(f"the run {why}; the end of {self.log}:\n{self.tail()}")


def processes(mark: str, name: str = "") -> list[psutil.Process]:
    """The living processes of a run whose command line contains a name."""
    return [p for p in psutil.process_iter() if _belongs(p, mark) and name in _command_line(p)]


def _belongs(process: psutil.Process, mark: str) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE and process.environ().get(MARK) == mark
    except (psutil.Error, OSError):
        return False


def _command_line(process: psutil.Process) -> str:
    """Ray's workers write their actor and method over the command line."""
    try:
        return " ".join(process.cmdline())
    except (psutil.Error, OSError):
        return ""


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run that ended well."""

    folder: Path
    steps: list[dict[str, float]]
    """The metrics of each step."""
    seconds: float
    log: str
    mark: str

    def watched(self, name: str) -> dict[str, Any]:
        """What the run saved: `update2` (what step 2 updated the policy with) or `credit2` (its credit step)."""
        return torch.load(self.folder / f"{name}.pt", weights_only=False)

    def by_place(self, step: int) -> dict[tuple[int, int], dict[str, torch.Tensor]]:
        """What a step updated the policy with, by number of the problem and of the sibling: verl shuffles."""
        saved = self.watched(f"update{step}")
        names = [name for name in saved if name != "places"]
        return {place: {name: saved[name][b] for name in names} for b, place in enumerate(saved["places"])}

    def column(self, name: str) -> list[float]:
        """One metric along the steps. Raises KeyError with the names there are."""
        missing = [number for number, step in enumerate(self.steps, 1) if name not in step]
        if missing:
            raise KeyError(f"no {name} in steps {missing}; there are {sorted(self.steps[missing[0] - 1])}")
        return [step[name] for step in self.steps]


def start(
    folder: Path, task: Path, *overrides: str, steps: int, ranks: int = 1, rollouts: tuple[int, int] = (16, 8)
) -> Training:
    """A run of verl's own command, to be entered; `overrides` come last and so win."""
    command = [sys.executable, "-m", "verl.trainer.main_ppo"]
    options = [*settings(task, steps=steps, ranks=ranks, rollouts=rollouts), *overrides]
    return Training(folder, [*command, f"trainer.default_local_dir={folder}/checkpoints", *options])


def train(folder: Path, task: Path, *overrides: str, steps: int, limit: float = 600.0, **others: Any) -> Run:
    """What a run logged that is over. Raises RunFailedError where it fails or takes more than so many seconds."""
    with start(folder, task, *overrides, steps=steps, **others) as training:
        status = training.wait(limit=limit)
        if status != 0:
            raise training.failed(f"ended with {status}")
        if len(training.steps()) != steps:
            raise training.failed(f"logged {len(training.steps())} steps instead of {steps}")
        return training.run()
