"""A platform, an engine and a vLLM worker for verl on a CPU, for tests.

verl imports this module in every process, as an entry point of the group `verl.plugins`; without
`VERL_PLATFORM=cpu` it does nothing. The configuration chooses the vLLM worker.
"""

import importlib
import os

if os.environ.get("VERL_PLATFORM", "").strip().lower() == "cpu":
    from gear_rl.runs.verl.plugin import after_import
    from verl_on_cpu import watch

    importlib.import_module("verl_on_cpu.platform")
    # verl is incomplete at `import verl`.
    after_import("verl.workers.engine", lambda: importlib.import_module("verl_on_cpu.engine"))
    if watch.FOLDER in os.environ:
        after_import("verl.trainer.ppo.v1.trainer_base", watch.watch_updates)
        after_import("gear_rl.runs.verl.credit_trainer", watch.watch_credit)
