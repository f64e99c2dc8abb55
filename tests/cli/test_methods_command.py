"""`gear methods`: the catalogue, the settings of one, and what it does not know."""

import json

from gear_rl.cli.methods import COSTS
from gear_rl.methods import METHODS
from support.commands import gear


def test_it_lists_every_method_with_its_cost():
    rows = json.loads(gear("methods", "--json").stdout)
    costs = json.loads(COSTS.read_text(encoding="utf-8"))["methods"]
    assert [row["name"] for row in rows] == [*METHODS]
    assert all(row["step"] == costs[row["name"]]["ratio"] for row in rows if row["name"] in costs)
    assert f"{costs['gear']['ratio']:.2f}" in gear("methods").stdout


def test_it_shows_the_settings_of_a_method_and_of_a_mixture():
    assert "onset_threshold" in gear("methods", "gear").stdout
    assert "share" in gear("methods", "gear*stare").stdout
    assert gear("methods", "gear:tokens").stdout == gear("methods", "gear").stdout
    for name, fix in (
        ("geer", "did you mean gear?"),
        ("geer*stare", "credit.first: no method 'geer'"),
        ("gear:token", "is no setting; write gear:S"),
    ):
        done = gear("methods", name)
        assert done.returncode == 2 and fix in done.stderr
