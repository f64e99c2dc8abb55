"""One run of a comparison: what it measures once, and what its seed draws."""

from dataclasses import replace

import pytest

from gear_rl.arena.task import Task
from gear_rl.lab.training import _cell_of_measures, _measure_once, run_cell
from gear_rl.runs.arena import sampling_seed
from lab.test_comparison import plan_without_ceiling
from support.commands import untouched


def test_a_damaged_evaluation_is_made_again(tmp_path):
    file = tmp_path / "before.json"
    file.write_text("{}")
    one, other = ({"rewards": [[reward]], "beside": {}} for reward in (0.5, 0.0))
    assert _measure_once(file, lambda: one) == one == _measure_once(file, lambda: other)


@pytest.mark.parametrize(
    ("rewards", "graded"),
    [([0.0, 0.5], True), ([1.0, 2.0], True), ([0.0, 0.5, 1.0], True), ([0.0, 1.0], False), ([0.5], False)],
)
def test_rewards_are_graded_unless_they_are_right_and_wrong(rewards, graded):
    """Of two on one side of full marks the share right would be 0 or 1 throughout."""
    [spec] = plan_without_ceiling([]).reported_specs()
    ends = {"rewards": [rewards], "beside": {}}
    assert _cell_of_measures(spec, ends, [], ends, []).graded == graded


def test_seeds_with_the_same_weights_draw_different_answers(tmp_path, monkeypatch):
    """Else the luck of one draw would be in all of them alike, and in no interval."""
    drawn: list[tuple[int, tuple[float, ...]]] = []

    def solve(task, trainer, problems, *, seed, solve=Task.solve):
        rewards = solve(task, trainer, problems, seed=seed)
        drawn.append((seed, tuple(rewards)))
        return rewards

    monkeypatch.setattr(Task, "solve", solve)
    first, second = plan_without_ceiling([], seeds=2, n_eval=64, samples=2).reported_specs()
    with untouched(None):
        for spec, folder in ((first, "a"), (second, "a"), (first, "b")):
            row = run_cell(replace(spec, between=False), tmp_path / folder)
            assert row.error is None, row.error
    assert [seed for seed, _ in drawn[:4]] == [sampling_seed(0, 0), sampling_seed(0, 1)] * 2
    before = [drawn[n][1] for n in (0, 1, 4, 5)]
    assert len({*before}) == 4, "neither two seeds nor two samples of a seed are alike"
    assert drawn[:4] == drawn[8:], "the same seed draws the same answers again"
