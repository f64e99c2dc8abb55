"""Runs `python -m verl.trainer.main_ppo` on the CPU, each run with its own Ray, and reads what it logged."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
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
    "RAY_worker_niceness": "0",  # Ray's 15 would let everything else on this machine go first
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
MACHINE = [
    "data.dataloader_num_workers=0",
    "reward.num_workers=1",
    # Without flash attention a pass over packed rows has a mask of their whole length squared.
    "actor_rollout_ref.model.use_remove_padding=False",
    "actor_rollout_ref.model.enable_gradient_checkpointing=False",
    "+actor_rollout_ref.model.override_config.attn_implementation=sdpa",
    f"{ACTOR}.ppo_micro_batch_size_per_gpu=32",
    f"{ACTOR}.use_torch_compile=False",
    f"{ACTOR}.fsdp_config.use_torch_compile=False",
    f"+{ACTOR}.fsdp_config.mixed_precision={FLOAT32}",
    f"+actor_rollout_ref.ref.fsdp_config.mixed_precision={FLOAT32}",
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
"""A small model in float32 on CPUs, for any run."""
SETTINGS = [
    *MACHINE,
    "data.seed=1",
    "data.max_prompt_length=64",
    "data.max_response_length=32",
    "data.filter_overlong_prompts=False",
    f"reward.custom_reward_function.path={HERE}/tasks.py",
    "algorithm.adv_estimator=grpo",
    "algorithm.use_kl_in_reward=False",
    f"{ACTOR}.strategy=fsdp2",
    f"{ACTOR}.optim.lr=1e-4",
    f"{ACTOR}.use_kl_loss=False",
    f"{ROLLOUT}.name=vllm",
]
"""What every run here has in common."""

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


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run that ended well."""

    folder: Path
    steps: list[dict[str, float]]
    """The metrics of each step."""

    def watched(self, name: str) -> dict[str, Any]:
        """What the run saved: `update2` (what step 2 updated the policy with) or `credit2` (its credit step)."""
        return torch.load(self.folder / f"{name}.pt", weights_only=False)

    def by_place(self, step: int) -> dict[tuple[int, int], dict[str, torch.Tensor]]:
        """What a step updated the policy with, by number of the problem and of the sibling: verl shuffles."""
        saved = self.watched(f"update{step}")
        names = [name for name in saved if name != "places"]
        return {place: {name: saved[name][b] for name in names} for b, place in enumerate(saved["places"])}

    def column(self, name: str) -> list[float]:
        """One metric of every step."""
        return [step[name] for step in self.steps]


def train(
    folder: Path,
    task: Path,
    *overrides: str,
    steps: int,
    ranks: int = 1,
    rollouts: tuple[int, int] = (16, 8),
    limit: float = 900.0,
) -> Run:
    """Run verl's own command to its end; `overrides` come last and so win."""
    command = [
        *(sys.executable, "-m", "verl.trainer.main_ppo"),
        *settings(task, steps=steps, ranks=ranks, rollouts=rollouts),
        f"trainer.default_local_dir={folder}/checkpoints",
        *overrides,
    ]
    return run(folder, command, {"GEAR_VERL_WATCH": str(folder)}, steps=steps, limit=limit)


def run(
    folder: Path, command: list[str], environment: dict[str, str], *, steps: int, limit: float = 900.0
) -> Run:
    """Run a command that starts verl, in `folder` and with a Ray of its own, to its end."""
    mark = uuid.uuid4().hex
    # Ray's sockets are in this folder, and the path of a socket has at most 107 characters.
    ray = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "VLLM_", "VERL_"))}
    metrics, log = folder / "metrics.jsonl", folder / "log.txt"
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    own = {**environment, MARK: mark, "VERL_FILE_LOGGER_PATH": str(metrics), "PATH": path}
    try:
        with log.open("wb") as out:
            status = subprocess.run(
                [*command, f"+ray_kwargs.ray_init._temp_dir={ray}"],
                cwd=folder,
                env=inherited | ENVIRONMENT | own,
                stdout=out,
                stderr=subprocess.STDOUT,
                timeout=limit,
                check=False,
            ).returncode
    finally:
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError):
                if process.environ().get(MARK) == mark:
                    process.kill()
        shutil.rmtree(ray, ignore_errors=True)
    assert status == 0, log.read_text(encoding="utf-8", errors="replace")[-5000:]
    entries = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    logged = [entry["data"] for entry in entries if entry["step"] > 0]
    assert len(logged) and int(logged[-1]["training/global_step"]) == steps
    return Run(folder=folder, steps=logged)
