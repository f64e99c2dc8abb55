"""gear score and gear compare: real runs, small ones."""

import json
import signal
import subprocess
import sys
import time
from dataclasses import asdict, replace

import psutil
import pytest
import torch

from gear_rl.arena.model import load
from gear_rl.arena.task import Task
from gear_rl.cli.compare import verdict_table
from gear_rl.cli.score import score_table
from gear_rl.errors import InputError
from gear_rl.lab import compare
from gear_rl.lab.compare import (
    compared,
    parse_method,
    parse_methods,
    plan_of,
    save,
    split_methods,
)
from gear_rl.lab.score import arena_material, records_of, score
from gear_rl.lab.training import _once, cell_trainer, finished, run_cell, run_cells
from gear_rl.methods import Gear, RandomOnsets
from gear_rl.runs.arena import accuracies, sampling_seed, task_of
from gear_rl.runs.config import build_method
from gear_rl.runs.machine import quiet_libraries
from gear_rl.versions import versions
from support.commands import gear, untouched

# --- score ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def scored():
    with untouched(None):
        quiet_libraries()
        material = arena_material(tier="easy", n=6)
        return score({"entropy_forks": {"name": "entropy_forks"}}, material)


def test_floors_controls_and_the_ceiling_are_always_there(scored):
    rows = scored[0]["methods"]
    roles = {name: row["role"] for name, row in rows.items()}
    assert roles["entropy_forks"] == "method"
    assert {name for name, role in roles.items() if role == "floor"} == {
        "uniform",
        "shuffled",
        "random_onsets",
    }
    assert {n for n, r in roles.items() if r == "control"} == {
        "gear_uninformed",
        "entropy_onsets",
        "entropy",
        "log_ratio",
        "divergence",
    }
    assert roles["oracle"] == "ceiling"
    assert all(row["n"] == 6 for row in rows.values())
    assert score_table(scored[0]).row_count == len(rows)


def test_an_even_credit_is_chance_and_the_oracle_is_not(scored):
    rows = scored[0]["methods"]
    assert rows["uniform"]["auc"] == 0.5 and rows["uniform"]["lift"] == 1.0
    assert rows["oracle"]["auc"] == 1.0 and rows["oracle"]["share"] == 1.0 and rows["oracle"]["rank"] == 1.0
    # The shipped student is unsure where it errs, and its teacher is not.
    assert rows["entropy"]["auc"] > 0.8 and rows["log_ratio"]["auc"] > 0.8
    assert rows["entropy_forks"]["auc"] > rows["uniform"]["auc"]


def test_the_same_signal_by_itself_and_through_the_engine(scored):
    """The replay scores the ids of the case, not what the policy would have said."""
    from gear_rl.arena import chain
    from gear_rl.arena.model import prompt_text

    chosen, records = records_of({"name": "gear"}, arena_material(tier="easy", n=3))
    model, tokenizer = load()
    for case, record in zip(chosen, records, strict=True):
        assert record.ids == case.faulty[0]
        row = chain.rows("easy", num=1, first_seed=case.row["seed"])[0] if "seed" in case.row else case.row
        prompt = tokenizer(prompt_text(tokenizer, row))["input_ids"]
        with torch.no_grad():
            logits = model(torch.tensor([prompt + record.ids])).logits[0].float()
        entropy = torch.distributions.Categorical(
            logits=logits[len(prompt) - 1 :][: len(record.ids)]
        ).entropy()
        torch.testing.assert_close(
            torch.tensor(record.signals["student_entropy"]), entropy, atol=1e-4, rtol=1e-3
        )
        assert record.reward == 0.0 and record.advantage < 0


# --- compare -------------------------------------------------------------------------------------------------


def test_a_method_may_carry_settings():
    assert parse_method("gear") == ("gear", {"name": "gear"})
    assert parse_method("gear:alpha=0.5,sign_mode=aware")[1] == {
        "name": "gear",
        "alpha": 0.5,
        "sign_mode": "aware",
    }
    assert parse_method("own=gear:alpha=0.5") == ("own", {"name": "gear", "alpha": 0.5})
    assert parse_method("own=my.module:Method") == ("own", {"name": "my.module:Method"})
    assert split_methods("own=gear:alpha=0.5,sign_mode=aware,rlsd") == [
        "own=gear:alpha=0.5,sign_mode=aware",
        "rlsd",
    ]
    blind = "blind=random_onsets:of.aligned=one,of.clip=[0.5, 2],seed=3"
    assert split_methods(f"{blind},rlsd") == [blind, "rlsd"]
    placebo = build_method(parse_method(blind)[1])
    assert placebo == RandomOnsets(of=Gear(aligned="one", clip=(0.5, 2.0)), seed=3)
    assert parse_methods(["gear", "own=rlsd:", "gear"]) == {"gear": {"name": "gear"}, "own": {"name": "rlsd"}}
    with pytest.raises(InputError, match=r"'own' stands for .* rename one"):
        parse_methods(["own=rlsd:", "own=gear:"])
    assert parse_method("my.module:Method")[1] == {"name": "my.module:Method"}
    with pytest.raises(InputError, match="'alpha' in 'gear:alpha' is no setting"):
        parse_method("gear:alpha")


EASY = {"task": "chain", "tier": "easy", "n_eval": 8, "rates": 1}


def without_ceiling(methods, **settings):
    """Most of what follows is about any method; the ceiling's own runs are test_oracle.py's."""
    plan = plan_of(methods, **{**EASY, **settings})
    named = {name: credit for name, credit in plan.methods.items() if name != plan.ceiling}
    return replace(plan, methods=named, ceiling=None)


def specs_of(methods, **settings):
    plan = without_ceiling(methods, **settings)
    return plan.reported()


def test_every_method_meets_every_seed_and_grpo_is_among_them():
    specs = specs_of(["gear"], seeds=2)
    assert [(s.name, s.seed) for s in specs] == [("uniform", 0), ("gear", 0), ("uniform", 1), ("gear", 1)]
    assert {s.steps for s in specs} == {20}, "the tier's own budget"
    assert len({s.file for s in specs}) == 4
    assert {s.samples for s in specs} == {4}
    plan = plan_of(["gear"], seeds=2, **EASY)
    assert [*plan.methods] == ["uniform", "oracle", "gear"] and plan.ceiling == "oracle"


@pytest.mark.parametrize(
    ("words", "tier"),
    [
        ([], "codebook/default"),
        (["--task", "chain"], "chain/hard"),
        (["--task", "errands"], "errands/default"),
        (["--tier", "easy"], "codebook/easy"),
    ],
)
def test_the_laboratory_takes_the_tier_that_tells_methods_apart(monkeypatch, words, tier):
    """GRPO ends at 0.94 on the chain's default tier, which is the demo's: no verdict is to be had there."""

    def refused(plan, *_, **__):
        raise InputError(plan.place)

    monkeypatch.setattr("gear_rl.cli.compare.run_plan_with_bar", refused)
    done = gear("compare", *words)
    assert done.stderr == f"gear: {tier}\n"


PLAN = without_ceiling(["crpo:style=[9]"], seeds=1, steps=1, samples=3)


@pytest.fixture(scope="module")
def comparison(tmp_path_factory):
    """A run that finishes, one that cannot in the same process; gone on with after the first."""
    folder = tmp_path_factory.mktemp("compare")
    specs = PLAN.reported()
    first = run_cells(specs[:1], folder / "cells", jobs=1)
    stamp = (folder / "cells" / specs[0].file).stat().st_mtime_ns
    rows = run_cells(specs, folder / "cells", jobs=1)
    assert (folder / "cells" / specs[0].file).stat().st_mtime_ns == stamp, "a finished run was run again"
    assert rows[0] == first[0]
    return folder, specs, rows


def test_a_run_that_fails_is_told_and_takes_no_other_along(comparison):
    _, _, rows = comparison
    assert [row["method"] for row in rows] == ["uniform", "crpo:style=[9]"]
    assert [row["error"] is None for row in rows] == [True, False]
    assert "style" in rows[1]["error"] and "9" in rows[1]["error"]


def test_a_failed_or_foreign_cell_is_run_again(comparison):
    folder, specs, _ = comparison
    cells = folder / "cells"
    assert finished(specs[0], cells) is not None
    assert finished(specs[1], cells) is None
    other = specs_of([], seeds=1, steps=2)[0]
    assert other.file != specs[0].file and finished(other, cells) is None, "another budget is another run"
    whole = (cells / specs[0].file).read_text()
    for changed in ("{}", "[]", whole[:100], whole.replace(json.loads(whole)["spec"]["name"], "other")):
        (cells / other.file).write_text(changed)
        assert finished(other, cells) is None


@pytest.mark.parametrize("text", ["", "[]", "{}"])
def test_a_damaged_evaluation_is_made_again(text, tmp_path):
    file = tmp_path / "before.json"
    file.write_text(text)
    assert _once(file, lambda: [0.5]) == [0.5] == _once(file, lambda: [0.0])


def test_another_default_is_another_cell(monkeypatch):
    """Else a comparison that goes on after an update would hold two methods under one name."""
    _, one = specs_of(["gear"], seeds=1)
    assert "alpha=4.0" in one.resolved

    def updated(credit):
        method = build_method(credit)
        return replace(method, alpha=3.0) if credit["name"] == "gear" else method

    monkeypatch.setattr(compare, "build_method", updated)
    _, other = specs_of(["gear"], seeds=1)
    assert one.credit == other.credit and one.file != other.file


def test_names_that_look_alike_have_files_of_their_own():
    files = [spec.file for spec in specs_of(["a b=gear", "a_b=gear", "a/b=gear"], seeds=1)]
    assert len({*files}) == 4 and not any("/" in file or " " in file for file in files)


def test_the_versions_are_those_of_the_runs(comparison):
    _, _, rows = comparison
    assert compared(PLAN, rows, {}, command="")["versions"] == versions()
    old = [rows[0] | {"versions": versions() | {"torch": "2.9.0"}}, rows[1]]
    assert compared(PLAN, old, {}, command="")["versions"]["torch"].startswith("2.")
    assert "2.9.0" in compared(PLAN, old, {}, command="")["versions"]["torch"]


ASKS = """
import json, signal, sys
from pathlib import Path
from gear_rl.lab.training import Spec, run_cells
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
if __name__ == "__main__":
    run_cells([Spec(**json.loads(sys.argv[1]))], Path(sys.argv[2]), jobs=1)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_run_ends_with_the_one_who_asked_for_it(tmp_path, how):
    """A comparison that is killed cannot tell its processes: each sees that nobody asks any more."""
    [spec] = specs_of([], seeds=1, steps=1000)
    (tmp_path / "asks.py").write_text(ASKS)
    cells = tmp_path / "cells"
    asks = subprocess.Popen([sys.executable, tmp_path / "asks.py", json.dumps(asdict(spec)), cells])
    while asks.poll() is None and not [*cells.glob("before-*.json")]:
        time.sleep(0.1)  # it trains soon after
    children = psutil.Process(asks.pid).children()
    assert children
    asks.send_signal(how)
    asks.wait(timeout=30)
    assert psutil.wait_procs(children, timeout=5)[1] == []
    assert not (cells / spec.file).exists()


def test_a_cell_has_the_accuracy_of_each_sampling(comparison):
    folder, specs, rows = comparison
    for when in ("before", "after"):
        each = rows[0][f"accuracies_{when}"]
        assert len(each) == 3 and rows[0][f"accuracy_{when}"] == sum(each) / 3
        assert all(share * 8 in range(9) for share in each)
    assert rows[0]["samples"] == rows[1]["samples"] == 3
    more = specs_of([], seeds=1, steps=1)[0]
    assert more.file != specs[0].file and finished(more, folder / "cells") is None, (
        "more samples: another run"
    )
    cell = compared(PLAN, rows, {}, command="")["comparisons"][0]["cells"][0]
    assert cell["accuracies_after"] == rows[0]["accuracies_after"] and cell["samples"] == 3


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """Two seeds, the same weights: what every evaluation of their cells drew, in order, as (seed, outcomes)."""
    folder = tmp_path_factory.mktemp("drawn")
    found: dict[int, list[tuple[int, tuple[float, ...]]]] = {}
    specs = specs_of([], seeds=2, steps=1, n_eval=64, samples=2)
    for spec in specs:
        drawn = found[spec.seed] = []

        def solve(task, trainer, problems, *, seed, drawn=drawn, solve=Task.solve):
            rewards = solve(task, trainer, problems, seed=seed)
            drawn.append((seed, tuple(rewards)))
            return rewards

        with untouched(None), pytest.MonkeyPatch.context() as patch:
            patch.setattr(Task, "solve", solve)
            row = run_cell(spec, folder)
            assert row["error"] is None, row["error"]
    return folder, specs, found


def test_seeds_with_the_same_weights_draw_different_answers(drawn):
    """Else the luck of one draw would be in all of them alike, and in no interval."""
    folder, specs, found = drawn
    before = {seed: [outcomes for _, outcomes in found[seed][:2]] for seed in (0, 1)}
    assert len({*before[0], *before[1]}) == 4, "neither two seeds nor two samples of a seed are alike"
    assert [seed for seed, _ in found[0]] == [sampling_seed(0, 0), sampling_seed(0, 1)] * 2, (
        "before and after"
    )
    assert len([*folder.glob("before-*.json")]) == 2, "the start is measured for every seed"
    # What is in the file of the start is what this seed drew, and another cell of the seed would draw it again.
    for spec in specs:
        [file] = folder.glob(f"before-*-seed{spec.seed}-samples2.json")
        shares = [sum(outcomes) / 64 for outcomes in before[spec.seed]]
        assert json.loads(file.read_text())["accuracies"] == shares


def test_the_same_seed_draws_the_same_answers_again(drawn, tmp_path):
    _, specs, found = drawn
    task = task_of("chain", "easy")
    problems = task.rows("easy", num=64, first_seed=task.held_out.start)
    with untouched(None):
        quiet_libraries()
        trainer = cell_trainer(specs[1], str(tmp_path))
        state = torch.random.get_rng_state()
        again = accuracies(task, trainer, problems, seed=1, samples=2)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert again == [sum(outcomes) / 64 for _, outcomes in found[1][:2]]


def test_no_two_samplings_share_a_seed():
    seeds = [sampling_seed(seed, number) for seed in range(100) for number in range(16)]
    assert len({*seeds}) == len(seeds)
    assert min(seeds) > 10_000, "and none is a seed that runs train with"


def test_the_comparison_hangs_on_the_runs_alone(comparison):
    folder, _, rows = comparison
    found = compared(PLAN, rows, {}, command="gear compare")
    slower = compared(PLAN, [row | {"seconds": 9e9} for row in rows], {}, command="gear compare")
    assert found == slower
    one = found["comparisons"][0]
    assert one["verdicts"][0]["method"] == "uniform"
    assert "too few seeds" in one["verdicts"][1]["words"]
    assert one["failed"] and one["failed"][0][0] == "crpo:style=[9]"
    assert verdict_table(found).row_count == 2
    save(found, folder)
    assert json.loads((folder / "comparison.json").read_text()) == found
    assert "crpo:style=[9]" in (folder / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["compare", "--methods", "gaer"], "no method 'gaer'; did you mean gear?"),
        (["compare", "--methods", "gear:alhpa=1"], "has no such setting; did you mean alpha?"),
        (["compare", "--seeds", "0"], "--seeds: 0"),
        (["compare", "--samples", "0"], "--samples: 0; give 1 or more"),
        (["compare", "--rates", "0"], "--rates: 0; give 1 or more"),
        (["compare", "--rollouts", "12"], "--rollouts: 12 per step; give a multiple of the 8 of a group"),
        (["compare", "--n-eval", "769"], "--n-eval: 769; there are 768 held-out problems to report on"),
        (["compare", "--methods", ","], "--methods: empty"),
        (["score", "--tier", "harder"], "no tier 'harder'; did you mean hard?"),
        (["score", "--n", "0"], "--n: 0 is not possible"),
        (["score", "--tsak", "chain"], "--tsak: no such option; did you mean --task"),
        (["score", "--model", "arena"], "--model: goes with --data"),
        (["score", "--max-tokens", "9"], "--max-tokens: goes with --data"),
        (["score", "--data", "x.jsonl", "--tier", "easy"], "--tier: is for the arena's tasks"),
        (["score", "--data", "x.jsonl"], "--model: missing"),
        (["score", "--data", "x.jsonl", "--model", "arena"], "--data: x.jsonl does not exist"),
        (
            ["score", "--data", "x.jsonl", "--model", "arena", "--credit.alpha", "1"],
            "--credit.alpha: not possible",
        ),
        (["score", "--data", "x.jsonl", "--model", "arena", "--aplha", "1"], "aplha: no such setting"),
        (["score", "--data", "x.jsonl", "--model", "arena", "--n", "0"], "--n: 0 is not possible"),
        (["score", "--data", "x.jsonl", "--model", "arena", "--max-tokens", "0"], "--max-tokens: 0"),
    ],
)
def test_bad_input_is_one_line(words, message, tmp_path):
    done = gear(*words, cwd=tmp_path)
    assert [*tmp_path.iterdir()] == []
    assert done.returncode == 2 and message in done.stderr, done.stderr
    assert "Traceback" not in done.stderr
