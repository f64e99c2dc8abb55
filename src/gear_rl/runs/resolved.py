"""``gear.yaml`` in a run's folder, which runs it again: all settings, including those of the method."""

import json
import os
import shlex
from pathlib import Path
from typing import Any

from gear_rl.credit.credit_config import METHOD_SETTINGS
from gear_rl.engines.folder import RunFolder, checkpoints_in
from gear_rl.errors import input_errors
from gear_rl.files import replace_file, without_secrets
from gear_rl.method_builder import credit_settings
from gear_rl.records import RECORDS
from gear_rl.runs.run_config import RunConfig
from gear_rl.traits import method_settings
from gear_rl.user_objects import import_object
from gear_rl.yaml_values import yaml_text

RUN_FILE, OUTPUT_DIR = "gear.yaml", "runs/train"
"""The file's name, and the default of ``output_dir``."""


def run_folder(config: RunConfig) -> RunFolder:
    """The folder of a run and of its records."""
    path = Path(str(config.trainer.get("output_dir") or OUTPUT_DIR)).expanduser()
    with input_errors():
        return RunFolder(path, config.trainer.get("record_file", RECORDS))


def how_to_go_on(config: RunConfig) -> str:
    """The command that resumes the run, if a checkpoint is there.

    >>> how_to_go_on(RunConfig(model="arena", dataset="arena", trainer={"output_dir": "nowhere"}))
    'nowhere has no checkpoint yet, so it begins anew; --save_strategy steps and a smaller --save_steps save more'
    """
    folder = run_folder(config)
    if not checkpoints_in(folder.path):
        more = "--save_strategy steps and a smaller --save_steps save more"
        return f"{folder.path} has no checkpoint yet, so it begins anew; {more}"
    return f"go on with: {_command(folder, '--resume_from_checkpoint latest')}"


def write_run(config: RunConfig, trainer: Any) -> None:
    """Write the settings of a run but tokens into its folder, below the command that runs it again elsewhere.

    They include those of the method and the engine settings that it sets. A record file in the folder is named
    relative to it, so that another ``output_dir`` gets its own.
    """
    folder: RunFolder = trainer.run_folder
    own = config.model_dump(exclude_none=True)
    name = credit_settings(config.credit).get("name", trainer.credit.name)
    is_object = ":" in name and not isinstance(import_object(name, "credit"), type)  # it takes no settings
    own["credit"] = name if is_object else {**method_settings(trainer.credit), "name": name}
    own |= {key: getattr(trainer.args, key) for key in METHOD_SETTINGS}
    own |= {key: value for key, value in config.trainer.items() if key != "overwrite_output_dir"}
    if trainer.args.teacher_model is not None:
        del own["teacher_model_kind"]  # the policy's weights, which another model stands in for
    own["output_dir"] = str(folder.path)
    if folder.records is not None and not folder.records_outside:
        own["record_file"] = os.path.relpath(folder.records.resolve(), folder.path.resolve())
    plain = json.loads(json.dumps(without_secrets(own), default=str))
    text = (
        f"# {_command(folder, '--output_dir OTHER')}\n"
        "# runs this again, in the directory where it was run: paths and modules are relative to that one.\n"
        f"{yaml_text(plain)}"
    )
    replace_file(folder.path / RUN_FILE, text.encode())


def _command(folder: RunFolder, words: str) -> str:
    """``gear train`` with the folder's configuration; a record file outside the folder must be a new one."""
    records = f" --record_file {RECORDS}" if folder.records_outside else ""
    return f"gear train --config {shlex.quote(str(folder.path / RUN_FILE))} {words}{records}"
