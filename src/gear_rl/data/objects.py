"""Objects of the user's own, by name."""

import importlib
import os
import sys
from typing import Any

from gear_rl.errors import InputError, did_you_mean, raised


def import_object(path: str, where: str) -> Any:
    """The object that ``package.module:object`` names; the folder that the command runs in is searched too.

    >>> import_object("math:sqrt", "reward")(9)
    3.0
    """
    module_name, _, attribute = path.partition(":")
    if not attribute or not all(module_name.split(".")):
        raise InputError(f"{where}: {path!r} names no object; write package.module:object")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise InputError(
            f"{where}: cannot import {module_name!r} ({error}); check the name and the folder"
        ) from None
    except Exception as error:
        raise InputError(f"{where}: importing {module_name!r} fails: {raised(error)}") from error
    if not hasattr(module, attribute):
        raise InputError(
            f"{where}: {module_name!r} has no {attribute!r}; {did_you_mean(attribute, dir(module))}"
        )
    return getattr(module, attribute)
