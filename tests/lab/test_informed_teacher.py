"""Does the own context stand out: on a model of the arena that reads one kind of context and not the other."""

import logging
from types import SimpleNamespace

import pytest
import torch

from gear_rl.credit.informed import PROMPTS_TO_JUDGE, TeacherCheck, likelier, stands_out, two_others
from gear_rl.lab.teacher import examine, teacher_config
from gear_rl.methods import Gear, Uniform
from gear_rl.runs.config import load_config
from gear_rl.runs.trainer import make_trainer
from support.commands import gear


def test_three_contexts_that_could_change_places_stand_out_half_the_time():
    torch.manual_seed(0)
    own, second, third = -torch.rand(3, 4000, 30) * 3
    assert stands_out(own, second, third).mean() == pytest.approx(0.5, abs=0.03)
    near = second + 0.3 * torch.randn(4000, 30)
    assert stands_out(own, second, near).mean() > 0.95
    assert stands_out(second, own, near).mean() < 0.2


def test_a_copying_teacher_is_found_by_what_it_makes_likelier_and_not_by_distance():
    """Its own context says what was written; of two others each is wrong somewhere else, and lies off both."""
    torch.manual_seed(0)
    wrong = torch.rand(2, 4000, 30) < 0.2
    own, second, third = torch.full((4000, 30), -0.01), *torch.where(wrong, -6.0, -0.01)
    assert stands_out(own, second, third).mean() < 0.2
    assert likelier(own, second, third).mean() > 0.95
    assert likelier(*-torch.rand(3, 4000, 30)).mean() == pytest.approx(0.5, abs=0.03)


def test_the_two_others_are_other_texts():
    assert two_others(["a", "a", "b", None, "c"]) == [("b", "c"), ("b", "c"), ("c", "a"), None, ("a", "b")]
    assert two_others(["a", "a", "b"]) == [None, None, None]


class Scripted:
    """An engine for which a context's log-prob is a number of its own."""

    rank = 0

    def __init__(self):
        self.logged = []

    def gather(self, x):
        return x

    def gather_objects(self, items):
        return items

    def log(self, metrics):
        self.logged.append((metrics["gear/teacher/informed"], metrics["gear/teacher/likelier"]))


def checked(monkeypatch, value, steps=8, method=None, prompts=4, more=0.5):
    """A check over some steps whose comparisons come out as ``value`` and ``more`` say."""
    import gear_rl.credit.informed as module

    monkeypatch.setattr(module, "context_logprob", lambda batch, *_: torch.zeros(len(batch.group), 1))
    monkeypatch.setattr(module, "stands_out", lambda own, *_: torch.full((len(own),), value))
    monkeypatch.setattr(module, "likelier", lambda own, *_: torch.full((len(own),), more))
    check, engine = TeacherCheck(every=2), Scripted()
    for step in range(steps):
        completions = SimpleNamespace(mask=torch.ones(2 * prompts, 3, dtype=torch.bool))
        group = [b // 2 for b in range(2 * prompts)]
        contexts = [f"{step} {g}" for g in group]
        batch = SimpleNamespace(step=step, group=group, first=0, completions=completions, contexts=contexts)
        plan = SimpleNamespace(batch=batch, method=method or Gear())
        check(plan, engine, None)
    return check, engine


def test_a_run_warns_once_and_only_when_enough_was_seen(unchecked, monkeypatch, caplog):
    with caplog.at_level(logging.WARNING, logger="gear_rl"):
        check, engine = checked(monkeypatch, 0.5, steps=2 * PROMPTS_TO_JUDGE // 4 - 1)
        assert engine.logged == [(0.5, 0.5)] * 5 and not caplog.records
        check, _ = checked(monkeypatch, 0.5, steps=40)
    assert len(check.values) == 80, "one completion of each of four prompts, every second step"
    [warning] = caplog.records
    assert "does not seem to read" in warning.message and "in 50 % of the comparisons" in warning.message


def test_nothing_is_said_of_an_informed_teacher_nor_of_a_method_without_one(unchecked, monkeypatch, caplog):
    with caplog.at_level(logging.WARNING, logger="gear_rl"):
        assert checked(monkeypatch, 1.0, steps=40)[1].logged == [(1.0, 0.5)] * 20
        assert checked(monkeypatch, 0.5, more=1.0, steps=40)[1].logged == [(0.5, 1.0)] * 20
        assert checked(monkeypatch, 0.0, more=0.0, steps=40)[1].logged == [(0.0, 0.0)] * 20
        assert checked(monkeypatch, 0.0, steps=40, method=Uniform())[1].logged == []
    assert not caplog.records


def test_a_step_with_one_prompt_takes_other_contexts_from_earlier_ones(unchecked, monkeypatch):
    check, engine = checked(monkeypatch, 1.0, steps=8, prompts=1)
    assert len(engine.logged) == 2 and len(check.pool) == 4


ARENA = ["--per_device_train_batch_size", "32"]


def test_the_arenas_teacher_reads_a_worked_solution_and_not_an_answer():
    def found(*words):
        config = teacher_config(None, "arena", "arena/chain/default", "arena", [*ARENA, *words])
        return examine(config, n=24, samples=2)

    read, about = found()
    assert read.word == "informed" and read.reads.share > 0.65 and about["sources"] == ["privileged_context"]
    assert about["completions"] == 48 and 0 < about["right"] < 48
    told, _ = found("--privileged_column", "answer")
    assert told.word == "not informed" and told.reads.share < 0.65


@pytest.mark.parametrize(("column", "warns"), [("answer", True), ("privileged_context", False)])
def test_a_training_warns_where_the_teacher_reads_nothing(tmp_path, caplog, column, warns):
    words = ["--per_device_train_batch_size", "32", "--num_generations", "2", "--max_steps", "3"]
    words += ["--teacher_check_steps", "1", "--save_strategy", "no", "--privileged_column", column]
    run = ["--model", "arena", "--dataset", "arena/chain/default", "--reward", "arena"]
    trainer = make_trainer(load_config(None, [*run, *words, "--output_dir", str(tmp_path)]))
    with caplog.at_level(logging.WARNING, logger="gear_rl"):
        trainer.train()
    shares = [entry["gear/teacher/informed"] for entry in trainer.state.log_history[:3]]
    assert len(trainer.teacher_check.values) == PROMPTS_TO_JUDGE and all(0 <= share <= 1 for share in shares)
    assert any("does not seem to read" in record.message for record in caplog.records) == warns


def test_what_cannot_be_looked_at_is_one_line(tmp_path):
    for words, said in [
        (["--n", "2"], "--n: 2; give 3 or more"),
        (["--credit", "uniform"], "credit: 'uniform' has no teacher"),
        (
            ["--privileged_column", "nothing"],
            "train_dataset: method 'gear' compares the student with a teacher",
        ),
    ]:
        done = gear("teacher", "--model", "arena", "--data", "arena/chain/easy", *words)
        assert done.returncode == 2 and said in done.stderr, done.stderr
