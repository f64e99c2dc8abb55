"""verl on a CPU, for tests: a platform, an engine and a vLLM worker, all through doors that verl and vLLM offer.

verl imports this module at `import verl`, in every process of a run: an entry point of the group `verl.plugins`.
It then does nothing unless `VERL_PLATFORM=cpu`. The vLLM worker is chosen by configuration
(`engine_kwargs.vllm.worker_cls=verl_on_cpu.rollout.ReloadableCPUWorker`).
"""

import importlib
import os

if os.environ.get("VERL_PLATFORM", "").strip().lower() == "cpu":
    from verl_on_cpu import watch
    from verl_on_cpu.late import after_import

    importlib.import_module("verl_on_cpu.platform")
    # verl's engines import torch, transformers and all of FSDP: too much for every process at `import verl`, and
    # too early, since verl is not whole yet. So ours joins them when verl itself has imported them.
    after_import("verl.workers.engine", lambda: importlib.import_module("verl_on_cpu.engine"))
    if watch.FOLDER in os.environ:
        after_import("verl.trainer.ppo.v1.trainer_base", watch.watch_updates)
        after_import("gear_rl.runs.verl.trainer", watch.watch_credit)
