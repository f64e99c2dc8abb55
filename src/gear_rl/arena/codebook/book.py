"""The codebook itself: every symbol's code, and how often the student of the warm start knows it. Tables only."""

from __future__ import annotations

from gear_rl.arena.habits import Habit, habits_of, right_codes

SYMBOLS: tuple[str, ...] = tuple(first + second for first in "BCDFGHJKLMNPRSTV" for second in "aeio")
"""What can be looked up: 64, so that 32 of them leave as many for another problem's reference."""
FILLER: tuple[str, ...] = ("also", "and", "hm", "next", "now", "so", "then", "well")
"""Words between decisions, which nothing judges."""

RIGHT: dict[str, str] = right_codes(SYMBOLS, "codes of the codebook")
"""The code of each symbol; no two share one."""
HABITS: dict[str, Habit] = habits_of(RIGHT, "habits of the student")
"""What the student of the warm start is taught to write for each symbol where it sees no reference."""
