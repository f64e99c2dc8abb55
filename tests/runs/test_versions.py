"""What a result says about where it was made."""

import platform

from gear_rl.runs.versions import machine


def test_the_machine_is_in_words_and_without_its_name():
    words = machine()
    assert "cores" in words
    assert not platform.node() or platform.node() not in words.split(", ")
