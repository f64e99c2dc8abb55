"""The commands, as `gear --help` lists them."""

import inspect

from gear_rl.cli.app import app, export


def test_the_summary_of_every_command_is_a_sentence():
    commands = [*app.registered_commands, *export.registered_commands]
    summaries = [inspect.getdoc(command.callback).partition("\n\n")[0] for command in commands]
    assert len(summaries) > 10 and all(summary.endswith((".", "?")) for summary in summaries), summaries
