"""docs/data.md: its blocks run, and print what their comments say."""

import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "data.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_the_blocks_print_what_they_say(tmp_path, monkeypatch, capsys):
    pytest.importorskip("math_verify")
    pytest.importorskip("reasoning_gym")
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    checked = 0
    for block in BLOCKS:
        exec(compile(block, "docs/data.md", "exec"), names)
        promised = re.findall(r"^print\(.*\)  # (.*)$", block, re.MULTILINE)
        assert capsys.readouterr().out.splitlines() == promised
        checked += len(promised)
    assert checked >= 9


def test_every_name_of_the_tables_is_one_that_the_command_knows():
    from gear_rl.data.rewards.catalogue import OUR_REWARDS
    from gear_rl.data.sources import FILE_KINDS

    for name in (*OUR_REWARDS, *FILE_KINDS):
        assert f"`{name}`" in PAGE or name in PAGE.split("## Columns")[0], name
