"""gear compare on the user's own run: its settings, its data, its reward, its held-out rows."""

import io
import json

import pytest
from PIL import Image
from rich.console import Console

from gear_rl.cli.compare import verdict_table
from gear_rl.errors import InputError
from gear_rl.lab import comparison
from gear_rl.lab.comparison import findings_of
from gear_rl.lab.run_plan import digest_of_inputs, plan_of_run
from gear_rl.lab.sft import demonstrations, prompts_of
from gear_rl.lab.spec import failed_cell, write_cell
from gear_rl.lab.training import cell_trainer, run_cell
from gear_rl.runs.run_config import load_config
from support.commands import gear, untouched

RUN = {
    "model": "arena/chain", "dataset": "rows.jsonl", "reward": "rewards:digits", "held_out": 12, "max_steps": 1,
    "max_completion_length": 6, "per_device_train_batch_size": 8, "num_generations": 8, "temperature": 0.5,
    "success_reward": 0.5,
}  # fmt: skip
REWARDS = """
def digits(completions, **_):
    return [sum(c in "13579" for c in m[-1]["content"]) / 10 for m in completions]
"""


@pytest.fixture
def folder(tmp_path):
    """The user's folder: rows and a reward of their own."""
    rows = [{"prompt": f"{n} + 1", "answer": str(n + 1)} for n in range(40)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "rewards.py").write_text(REWARDS)
    with untouched(tmp_path):
        yield tmp_path


def words_of(**more):
    settings = {key: value for key, value in (RUN | more).items() if value is not None}
    return [w for k, v in settings.items() for w in (f"--{k}", json.dumps(v).strip('"'))]


def plan_with(methods=(), seeds=1, samples=1, outcome=None, perplexity=None, rates=4, **more):
    own = {"outcome": outcome, "perplexity": perplexity, "rates": rates}
    return plan_of_run(load_config(None, words_of(**more)), methods, seeds=seeds, samples=samples, **own)


def test_the_methods_share_all_but_themselves(folder):
    methods = ["gear", "live=gear:teacher_model_kind=live", "answer=gear:privileged_column=answer"]
    plan = plan_with(methods, 2, max_steps=3, learning_rate=2e-5, teacher_model_kind="ema", seed=7)
    assert (plan.rate, plan.steps, plan.rollouts, plan.n_eval, plan.ceiling) == (2e-5, 3, 8, 9, None)
    specs = {spec.name: spec for spec in plan.reported_specs()}
    assert {name: spec.engine["teacher_model_kind"] for name, spec in specs.items()} == {
        "uniform": "ema", "gear": "ema", "live": "live", "answer": "ema",
    }  # fmt: skip
    assert specs["answer"].engine["privileged_column"] == "answer"
    assert specs["gear"].run["trainer"]["temperature"] == 0.5
    assert not {"seed", "max_steps", "learning_rate"} & set(specs["gear"].run["trainer"])
    tuned = plan.tuning_specs("gear", [2e-5])[0]
    assert (tuned.first, tuned.n_eval) == (9, 3), "the last quarter tunes"
    assert plan_with(rates=1).n_eval == 12, "nothing tunes"


def test_other_data_code_or_weights_are_another_comparison(folder):
    (folder / "teacher").mkdir()
    (folder / "beside.jsonl").write_text('{"prompt": "1 + 2"}\n')
    row = '{"prompt": "2 + 2"}\n'
    changes = {
        "rows.jsonl": row, "beside.jsonl": row, "rewards.py": "# other\n", "teacher/weights": "other",
    }  # fmt: skip
    more = {"teacher_model": "teacher", "eval_dataset": "{judges: rows.jsonl, other: beside.jsonl}"}
    files = [plan_with(held_out=None, **more).reported_specs()[0].file for _ in range(2)]
    for name, text in changes.items():
        with (folder / name).open("a") as file:
            file.write(text)
        files.append(plan_with(held_out=None, **more).reported_specs()[0].file)
    assert files[0] == files[1] and len(set(files)) == 5


def test_the_same_images_are_the_same_comparison():
    """Their text would be an address, which no two processes share."""
    digests = [digest_of_inputs(b"", [{"image": Image.new("L", (2, 2), grey)}], ()) for grey in (0, 0, 9)]
    assert digests[0] == digests[1] != digests[2]


def test_no_secret_is_written(folder, monkeypatch):
    secret = {"hub_token": "hf_secret", "model_init_kwargs": {"token": "hf_secret", "dtype": "float32"}}
    [spec] = plan_with(**secret).reported_specs()
    assert spec.run["trainer"]["model_init_kwargs"]["token"] == "hf_secret", "the run needs it"
    assert spec.file == plan_with(model_init_kwargs={"dtype": "float32"}).reported_specs()[0].file
    write_cell(spec, failed_cell(spec, "killed"), folder / "out")
    monkeypatch.setattr(comparison, "run_cells", lambda specs, *_, **__: [failed_cell(s, "") for s in specs])
    gear("compare", *words_of(**secret), "--rates", "1", "--out", "out", cwd=folder)
    files = [file.read_text() for file in (folder / "out").iterdir()]
    assert len(files) == 3 and all("float32" in text and "hf_secret" not in text for text in files)


def test_a_method_in_the_folder_needs_no_package(folder):
    (folder / "surprise.py").write_text(
        "from gear_rl import Gear\nclass Surprise(Gear):\n    name = 'mine'\n"
    )
    plan = plan_with(["surprise:Surprise", "own=surprise:Surprise"])
    assert plan.methods["surprise:Surprise"] == plan.methods["own"] == {"name": "surprise:Surprise"}
    with pytest.raises(InputError, match=r"no method 'gaer'; did you mean gear\?"):
        plan_with(["gaer:tokens"])


def test_a_changed_method_of_ones_own_is_another_run(folder):
    def names():
        return {
            spec.name: spec.file for spec in plan_with(["own=shuffled:of=own_method:Mine"]).reported_specs()
        }

    code = "from gear_rl import Gear\nclass Mine(Gear):\n    name = 'mine'\n"
    (folder / "own_method.py").write_text(code)
    before = names()
    (folder / "own_method.py").write_text(code + "# other")
    assert before["uniform"] == names()["uniform"] and before["own"] != names()["own"]


def test_every_reward_has_its_weight(folder):
    with pytest.raises(InputError, match="reward_weights: 2 numbers; give one for each reward, 1 in all"):
        plan_with(reward_weights=[1.0, 2.0])


def test_full_marks_may_be_0(folder):
    assert [plan_with(success_reward=value).run["right"] for value in (0, None)] == [0, 1]


def test_a_cell_trains_and_is_judged_by_the_run_itself(folder):
    plan = plan_with(samples=2)
    [spec] = plan.reported_specs()
    row = run_cell(spec, folder / "cells")
    assert row.error is None, row.error
    assert len(row.curves["reward"]) == 1 and len(row.after.rewards) == 2
    assert all(share * 9 == pytest.approx(round(share * 9)) for share in row.after.successes)
    assert row.full_marks == 0.5, "success_reward"
    assert 0 <= row.rewards[0] < row.rewards[1] <= 1, "the lowest and the highest"
    assert row.graded and all(
        reward * 90 == pytest.approx(round(reward * 90)) for reward in row.after.rewards
    )
    again = run_cell(spec, folder / "other")
    assert again.model_copy(update={"seconds": row.seconds}) == row
    found = findings_of(plan, [row], {}, command="")
    assert found.title == "Does it help? arena/chain on rows.jsonl, for reporting"
    other = row.model_copy(update={"method": "mine[/v2]"})
    beyond = findings_of(plan, [row.model_copy(update={"rewards": (0.0, 10.0)}), other], {}, command="")
    with Console(file=io.StringIO(), width=200) as console:
        console.print(verdict_table(beyond))
    shown = console.file.getvalue()
    assert "success_reward: 0.5, but rewards reach 10; give full marks" in shown
    assert shown.count("mine[/v2]") == 2, "no markup in the table or under it"


def test_a_run_that_learns_nothing_has_a_level_curve(folder):
    """The same problems throughout, and the same random numbers."""
    [spec] = plan_with(max_steps=4, learning_rate=0.0).reported_specs()
    row = run_cell(spec, folder / "cells")
    assert row.error is None, row.error
    way = [height for _, height in row.curve("reward")]
    assert way == [way[0]] * 5


def test_other_tiers_and_a_text_stand_beside(folder):
    (folder / "other.jsonl").write_text((folder / "rows.jsonl").read_text().replace("+ 1", "+ 2"))
    (folder / "text.txt").write_text("one two\n\nthree\n\n1")
    tiers = "{same: rows.jsonl, other: other.jsonl}"
    plan = plan_with(eval_dataset=tiers, held_out=None, perplexity=folder / "text.txt")
    (folder / "short.txt").write_text("1\n\n2")
    with pytest.raises(InputError, match=r"--perplexity: .* no paragraph of two words"):
        plan_with(perplexity=folder / "short.txt")
    assert len(plan.held_out) == 40, "the first tier judges"
    [row] = (run_cell(spec, folder / "cells") for spec in plan.reported_specs())
    assert row.error is None, row.error
    (before, after), text = row.beside["other"], row.beside["perplexity"]
    assert 0 <= before <= 1 and 0 <= after <= 1 and text[0] > 1 and text[1] != text[0]
    found = findings_of(plan, [row], {}, command="").comparison
    assert found.outcome == "reward"
    assert found.verdicts[0].beside == {"other": (before, after), "perplexity": text}


def test_fine_tuning_is_a_row_and_may_come_first(folder):
    rows = [{"prompt": f"{n} +1", "solution": f"{n} +1 = {n + 2}"} for n in range(10, 50)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "rewards.py").write_text(
        "def right(completions, solution, **_):\n"
        "    return [float(s in m[-1]['content']) for m, s in zip(completions, solution)]\n"
    )
    run = {"reward": "rewards:right", "max_steps": 12, "learning_rate": 3e-3, "success_reward": 1.0}
    plan = plan_with(["sft", "uniform:sft=0.5"], max_completion_length=12, **run)
    rows = {spec.name: run_cell(spec, folder / "cells") for spec in plan.reported_specs()}
    assert [row.error for row in rows.values()] == [None] * 3
    assert [len(rows[name].curves["reward"]) for name in plan.methods] == [12, 0, 6]
    assert [score.step for score in rows["uniform:sft=0.5"].held_out] == [3, 6, 9]
    before, after = rows["sft"].ends("success")
    assert after > before, rows["sft"]


def test_fine_tuning_sees_the_prompts_that_grpo_draws(folder):
    trainer = cell_trainer(plan_with().reported_specs()[0], str(folder / "scratch"))
    drawn = [trainer.train_dataset[i]["prompt"] for i in trainer._get_train_sampler()]
    assert [row["prompt"] for row in prompts_of(trainer, 1, 2)] == drawn[8:24:8]
    assert len(prompts_of(trainer, 1000, 2)) == len(trainer.train_dataset), "few rows are all used"
    [shown] = demonstrations(
        trainer, [{"prompt": [{"role": "user", "content": "1 +1"}], "answer": "1 +1 = 02"}]
    )
    text = trainer._tokenizer.decode(shown["input_ids"])
    assert text.endswith("1 +1 = 02<|im_end|>") and text.startswith("<|im_start|>user")
    assert (
        trainer._tokenizer.decode([i for i, kept in zip(*shown.values(), strict=True) if kept])
        == "1 +1 = 02<|im_end|>"
    )
    with pytest.raises(ValueError, match="sft: a row has no privileged text"):
        demonstrations(trainer, [{"prompt": "1 +1"}])


@pytest.mark.parametrize(
    ("more", "methods", "message"),
    [
        ({"max_steps": 0}, [], "--steps: missing"),
        ({"reward": "rewards:digit"}, [], "did you mean digits?"),
        ({"columns": {"unused": "answer"}}, ["gear"], "gear: train_dataset: method 'gear' compares"),
        ({}, ["uniform:sft=2"], "uniform:sft=2: sft: 2; give a share of the steps, 0 to 1"),
        ({}, ["sft:privileged_column=no"], "sft: a row has no privileged text to imitate"),
        ({"generation_batch_size": 16}, ["m=uniform:rollouts=24"], "m: generation_batch_size (16) must"),
        ({"top_p": 0.9}, ["oracle"], "top_p: 0.9; 'oracle' samples from the whole vocabulary"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_a_model_is_loaded(folder, more, methods, message):
    with pytest.raises(InputError) as refused:
        plan_with(methods, **more)
    assert message in str(refused.value)
