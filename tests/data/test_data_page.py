"""docs/data.md names what the command knows; that its blocks run is tested with the other pages."""

from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs" / "data.md").read_text(encoding="utf-8")


def test_every_name_of_the_tables_is_one_that_the_command_knows():
    from gear_rl.data.rewards.catalogue import OUR_REWARDS
    from gear_rl.data.sources import FILE_KINDS

    for name in (*OUR_REWARDS, *FILE_KINDS):
        assert f"`{name}`" in PAGE or name in PAGE.split("## Columns")[0], name
