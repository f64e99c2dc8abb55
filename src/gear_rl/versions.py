"""Installed versions of everything a result may depend on."""

import importlib.metadata
import platform

PACKAGES = (
    "torch",
    "jaxtyping",
    "trl",
    "transformers",
    "accelerate",
    "datasets",
    "peft",
    "vllm",
    "deepspeed",
    "verl",
)
"""Packages that are listed where they are installed."""


def versions() -> dict[str, str]:
    """Installed versions of everything a result may depend on.

    >>> "torch" in versions()
    True
    """
    installed = {"python": platform.python_version()}
    for package in ("gear-rl", *PACKAGES):
        try:
            installed[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return installed
