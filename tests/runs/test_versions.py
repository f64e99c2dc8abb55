"""What a result says about where it was made."""

import platform

import pytest

from gear_rl.runs.versions import machine
from gear_rl.tensor import tiles


@pytest.mark.parametrize(("l2", "said"), [(3 * 2**19, "L2 1.5 MiB a core"), (None, "L2 not known")])
def test_the_machine_is_in_words_and_without_its_name(monkeypatch, l2, said):
    monkeypatch.setattr(tiles, "l2_bytes", lambda: l2)
    words = machine()
    assert said in words.split(", ")
    assert "cores" in words
    assert not platform.node() or platform.node() not in words.split(", ")
