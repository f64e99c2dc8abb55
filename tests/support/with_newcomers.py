"""A plugin: ``pytest -p support.with_newcomers`` runs with three more methods in the catalogue."""

import pytest


def pytest_collection(session: pytest.Session) -> None:
    """Before any test file is imported, since they take their parameters from the catalogue."""
    from gear_rl.methods import METHODS
    from support.newcomers import NEWCOMERS

    METHODS.update({cls.name: cls for cls in NEWCOMERS})
