"""Do something right after a module has been imported, by whoever imports it."""

import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable


class _After:
    """A finder that finds one module as everybody would, and acts once the module has run."""

    def __init__(self, name: str, act: Callable[[], object]):
        self.name, self.act = name, act

    def find_spec(self, name: str, path: object = None, target: object = None):
        if name != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module):
                execute(module)
                self.act()

            spec.loader.exec_module = exec_module
        return spec


def after_import(name: str, act: Callable[[], object]) -> None:
    """Act as soon as that module is imported; at once where it is already."""
    if name in sys.modules:
        act()
    else:
        sys.meta_path.insert(0, _After(name, act))
