"""Examples that need verl, which has an environment of its own (``make test-verl``)."""

from importlib.util import find_spec

_NEED_VERL = (
    "src/gear_rl/engines/verl/worker.py",
    *(f"src/gear_rl/runs/verl/{name}.py" for name in ("agent_loop", "plugin", "credit_trainer")),
)
collect_ignore = [] if find_spec("verl") else [*_NEED_VERL]
