"""The run of a folder, as one file that runs it again: all that was given, and what the method brought."""

import json
import os
import shlex
from pathlib import Path
from typing import Any

import yaml

from gear_rl.credit.config import METHOD_SETTINGS
from gear_rl.engines.checkpoints import checkpoints_in
from gear_rl.engines.folder import RunFolder
from gear_rl.errors import InputError
from gear_rl.files import replace_file
from gear_rl.runs.config import RunConfig
from gear_rl.traits import method_settings

RUN_FILE, OUTPUT_DIR = "gear.yaml", "runs/train"
"""The file's name, and where a run without an ``output_dir`` goes."""


def run_folder(config: RunConfig) -> RunFolder:
    """The folder of a run and of its records."""
    path = Path(str(config.trainer.get("output_dir", OUTPUT_DIR))).expanduser()
    try:
        return RunFolder(path, config.trainer.get("record_file"))
    except ValueError as error:
        raise InputError(str(error)) from None


def resolved(config: RunConfig, trainer: Any) -> dict[str, Any]:
    """The configuration with all settings of the method, and those of the engine that it brought, as plain data.

    A record file in the folder is named relative to it, so that another ``output_dir`` gets its own.
    """
    own = config.model_dump(exclude_none=True)
    name = config.credit if isinstance(config.credit, str) else config.credit.get("name", trainer.credit.name)
    own["credit"] = {**method_settings(trainer.credit), "name": name}
    brought = {key: getattr(trainer.args, key) for key in METHOD_SETTINGS}
    once = ("resume_from_checkpoint", "overwrite_output_dir")
    given = {key: value for key, value in config.trainer.items() if key not in once}
    folder: RunFolder = trainer.run_folder
    place = {"output_dir": str(folder.path)}
    if folder.records is not None and not folder.records_outside:
        place["record_file"] = os.path.relpath(folder.records.resolve(), folder.path.resolve())
    return json.loads(json.dumps({**own, **brought, **given, **place}, default=str))


def how_to_go_on(config: RunConfig) -> str:
    """The command that resumes the run, if a checkpoint is there.

    >>> how_to_go_on(RunConfig(model="arena", dataset="arena", trainer={"output_dir": "nowhere"}))
    'nowhere has no checkpoint yet, so it begins anew; a smaller save_steps saves more often'
    """
    folder = run_folder(config)
    if not checkpoints_in(folder.path):
        return (
            f"{folder.path} has no checkpoint yet, so it begins anew; a smaller save_steps saves more often"
        )
    return f"go on with: {_command(folder, '--resume_from_checkpoint latest')}"


def write_run(config: RunConfig, trainer: Any) -> Path:
    """Write it into the trainer's folder, below the command that runs it again in another folder."""
    path = trainer.run_folder.path / RUN_FILE
    text = f"# {_command(trainer.run_folder, '--output_dir OTHER')}\n"
    text += (
        "# runs this again, in the directory where it was run: paths and modules are relative to that one.\n"
    )
    text += yaml.safe_dump(resolved(config, trainer), sort_keys=False, allow_unicode=True)
    replace_file(path, text.encode())
    return path


def _command(folder: RunFolder, words: str) -> str:
    """``gear train`` with the folder's configuration; a record file outside must be a new one."""
    records = " --record_file records.jsonl" if folder.records_outside else ""
    return f"gear train --config {shlex.quote(str(folder.path / RUN_FILE))} {words}{records}"
