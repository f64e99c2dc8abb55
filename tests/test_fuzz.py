"""A small part of the fuzzing campaign; the whole of it is ``python tests/campaign/fuzz.py``."""

import pytest

from campaign.fuzz import fuzz, lines_of
from support.commands import untouched


@pytest.fixture(scope="module")
def found():
    with untouched(None):  # it silences our log
        return fuzz(inputs=600, seed=1)


def test_nothing_raises_and_nothing_changes_silently(found):
    total = found["total"]
    assert total["inputs"] >= 600
    assert (total["tracebacks"], total["silent_changes"], total["wrongly_refused"]) == (0, 0, 0), "\n".join(
        lines_of(found)
    )


def test_every_kind_was_kept_and_many_were_refused_so_that_both_were_tried(found):
    for name, row in found["kinds"].items():
        assert row["kept"], (name, row)
    assert found["total"]["refused"] > 50
