"""The run of a folder, as one file that runs it again: all that was given, and what the method brought."""

import json
from pathlib import Path
from typing import Any

import yaml

from gear_rl.credit.config import METHOD_SETTINGS
from gear_rl.engines.checkpoints import checkpoints_in
from gear_rl.files import replace_file
from gear_rl.runs.config import RunConfig
from gear_rl.traits import method_settings

RUN_FILE, OUTPUT_DIR = "gear.yaml", "runs/train"
"""The file's name, and where a run without an ``output_dir`` goes."""


def run_folder(config: RunConfig) -> Path:
    """The folder of a run."""
    return Path(str(config.trainer.get("output_dir", OUTPUT_DIR)))


def quarantine_file(config: RunConfig) -> Path:
    """Where the rows of a run that cannot be used are written."""
    return run_folder(config) / "quarantine.jsonl"


def resolved(config: RunConfig, trainer: Any) -> dict[str, Any]:
    """The configuration with all settings of the method, and those of the engine that it brought.

    Defaults of TRL are left to TRL. Values are as YAML and JSON have them: a tuple is a list.
    """
    own = config.model_dump(exclude_none=True)
    name = config.credit if isinstance(config.credit, str) else config.credit.get("name", trainer.credit.name)
    own["credit"] = {**method_settings(trainer.credit), "name": name}
    brought = {key: getattr(trainer.args, key) for key in METHOD_SETTINGS}
    given = {key: value for key, value in config.trainer.items() if key != "resume_from_checkpoint"}
    place = {"output_dir": str(trainer.args.output_dir)}
    return json.loads(json.dumps({**own, **brought, **given, **place}, default=str))


def how_to_go_on(config: RunConfig) -> str:
    """What to say where the run was stopped: the command that resumes it, if a checkpoint is there.

    >>> how_to_go_on(RunConfig(model="arena", dataset="arena", trainer={"output_dir": "nowhere"}))
    'nowhere has no checkpoint yet, so it begins anew; a smaller save_steps saves more often'
    """
    folder = run_folder(config)
    if not checkpoints_in(folder):
        return f"{folder} has no checkpoint yet, so it begins anew; a smaller save_steps saves more often"
    return f"go on with: gear train --config {folder / RUN_FILE} --resume_from_checkpoint latest"


def write_run(config: RunConfig, trainer: Any) -> Path:
    """Write it into the trainer's folder: ``gear train --config FOLDER/gear.yaml --output_dir OTHER`` runs it."""
    path = Path(str(trainer.args.output_dir)) / RUN_FILE
    text = f"# gear train --config {path} --output_dir OTHER runs this again.\n"
    text += yaml.safe_dump(resolved(config, trainer), sort_keys=False, allow_unicode=True)
    replace_file(path, text.encode())
    return path
