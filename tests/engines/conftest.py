"""Real engines run the same functions thousands of times: shapes are checked in ``tests/test_methods.py``, where
every method trains, and where each function is tested."""

from collections.abc import Iterator

import jaxtyping
import pytest


@pytest.fixture(scope="package", autouse=True)
def unchecked_shapes() -> Iterator[None]:
    """A seventh of the time of these files."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
