"""What inspect-evals says of one of its tasks; run by the Python of that tool's environment, prints JSON."""

import json
import sys
from importlib.resources import files
from typing import Any


def about(suite: str) -> dict[str, Any]:
    """The folder of the task, its number of samples, what it fetches from elsewhere; else all tasks' names."""
    import yaml

    names: list[str] = []
    for folder in files("inspect_evals").iterdir():
        listing = folder / "eval.yaml"
        if not folder.is_dir() or not listing.is_file():
            continue
        facts = yaml.safe_load(listing.read_text(encoding="utf-8"))
        tasks = {task["name"]: task.get("dataset_samples") for task in facts.get("tasks", ())}
        if suite in tasks:
            assets = [f"{one['source']} ({one['type']})" for one in facts.get("external_assets") or ()]
            return {"folder": folder.name, "samples": tasks[suite], "assets": assets}
        names += tasks
    return {"names": sorted(names)}


if __name__ == "__main__":
    print(json.dumps(about(json.loads(sys.argv[1])["suite"])))
