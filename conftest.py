"""Which examples need what has an environment of its own, as it conflicts with TRL: verl (``make test-verl``) and
the tools of ``gear eval``."""

from importlib.util import find_spec

_NEED_VERL = (
    *(f"src/gear_rl/engines/verl/{name}.py" for name in ("agent_loop", "trainer", "worker")),
    *(f"src/gear_rl/runs/verl/{name}.py" for name in ("agents", "groups", "plugin", "trainers")),
)
_NEED_INSPECT = ("src/gear_rl/experiments/suites/inside/inspect_task.py",)
collect_ignore = [
    *(() if find_spec("verl") else _NEED_VERL),
    *(() if find_spec("inspect_ai") else _NEED_INSPECT),
]
