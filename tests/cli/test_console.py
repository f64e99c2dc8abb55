"""What a long command says of itself where nobody sees a bar."""

import io

from rich.console import Console

from gear_rl.cli import console as module
from gear_rl.cli.console import progress_bar


def test_a_long_command_says_now_and_then_where_it_stands_unless_a_terminal_shows_a_bar(monkeypatch):
    seconds = iter(range(0, 1000, 10))
    monkeypatch.setattr(module.time, "monotonic", lambda: float(next(seconds)))
    piped = Console(file=io.StringIO())
    with progress_bar(piped, "scoring ") as advance:
        for done in range(8):
            advance("gear:alpha=2", done, 8)
    lines = piped.file.getvalue().splitlines()
    assert lines[0].startswith("scoring gear:alpha=2: ") and lines[0].endswith(" of 8") and 1 < len(lines) < 5
    terminal = Console(file=io.StringIO(), force_terminal=True, width=80)
    pace = module.Pace(terminal, every=0.0)
    pace("8 of 64")
    assert terminal.file.getvalue() == ""


def test_a_short_one_says_nothing():
    piped = Console(file=io.StringIO())
    with progress_bar(piped) as advance:
        advance("sampling", 1, 8)
    assert piped.file.getvalue() == ""
