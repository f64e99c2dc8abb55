"""What tau2-bench says of its domains and of a run; run by the Python of that tool's environment, prints JSON."""

import hashlib
import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any


def about(domains: list[str]) -> dict[str, str]:
    """One checksum of every domain's files: tasks, database and policy."""
    from tau2.registry import registry
    from tau2.utils.utils import DATA_DIR

    found: dict[str, str] = {}
    for name in domains:
        folder = DATA_DIR / "tau2" / "domains" / name
        if name not in registry.get_domains():
            known = ", ".join(registry.get_domains())
            raise SystemExit(f"--categories: {name!r} is no domain of tau2; choose from {known}")
        if not folder.is_dir():
            raise SystemExit(
                f"--env: tau2 has no data of {name}; install it from a clone, or set TAU2_DATA_DIR"
            )
        whole = hashlib.sha256()
        for file in sorted(path for path in folder.rglob("*") if path.is_file()):
            whole.update(f"{file.relative_to(folder).as_posix()}\0".encode() + file.read_bytes())
        found[name] = whole.hexdigest()
    return found


def metrics(file: Path) -> dict[str, Any]:
    """The tool's own metrics of a finished run, and the mean reward of each task that it counts."""
    from tau2.data_model.simulation import Results, TerminationReason
    from tau2.metrics.agent_metrics import compute_metrics

    results = Results.load(file)
    found = compute_metrics(results)
    rewards: dict[str, list[float]] = defaultdict(list)
    for one in results.simulations:
        if one.termination_reason != TerminationReason.INFRASTRUCTURE_ERROR:
            rewards[one.task_id].append(one.reward_info.reward)
    return {
        "reward": found.avg_reward,
        "pass_hat": {str(k): value for k, value in found.pass_hat_ks.items()},
        "errors": found.infra_error_count,
        "tasks": {name: sum(values) / len(values) for name, values in rewards.items()},
    }


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    print(json.dumps(about(asked["domains"]) if "domains" in asked else metrics(Path(asked["file"]))))
