"""Is the teacher informed: verdicts of which the truth is known, the check of a run, and real models."""

import json
import logging
import random

import pytest
import torch

from gear_rl.credit.teacher_check import PROMPTS_TO_JUDGE, share_less_likely, stands_out
from gear_rl.errors import InputError
from gear_rl.lab.sampling import sample, sampled_engine
from gear_rl.lab.teacher_scores import examine, sampling_config, teacher_config
from gear_rl.lab.teacher_verdict import Scored, sentences, verdict
from gear_rl.runs.run_config import load_config
from gear_rl.runs.trl_run import make_trainer


def completions(
    stands_out,
    right=0.0,
    wrong=0.0,
    prompts=32,
    rewards=(1.0, 1.0, 0.0, 0.0),
    seed=0,
    likelier=0.5,
    reward=True,
):
    """Gains per token with noise around ``right`` and ``wrong``; ``stands_out`` is a chance."""
    rng = random.Random(seed)

    def one(prompt, got):
        own = -1 + (right if got else wrong) + rng.gauss(0, 0.1)
        out = (float(rng.random() < stands_out) + float(rng.random() < stands_out)) / 2
        more = (float(rng.random() < likelier) + float(rng.random() < likelier)) / 2
        shares = {"stands_out": out, "likelier": more, "reward": got if reward else None}
        return Scored(prompt=prompt, own=own, other=-1, none=-1, **shares)

    return [one(prompt, got) for prompt in range(prompts) for got in rewards]


@pytest.mark.parametrize(
    ("out", "more", "word"),
    [
        (0.85, 0.5, "informed"),
        (0.6, 0.5, "weak"),
        (0.5, 0.5, "not informed"),
        (0.5, 0.85, "informed"),
        (0.5, 0.6, "weak"),
        (0.5, 0.15, "informed"),
    ],
)
def test_a_context_that_is_read_stands_out_or_changes_how_likely_completions_are(out, more, word):
    assert verdict(completions(out, likelier=more, reward=False)).word == word


def test_the_reward_decides_where_prompts_have_both():
    assert verdict(completions(0.5, right=0.3, wrong=-0.3)).word == "informed"
    assert verdict(completions(0.9)).word == "weak", "it reads, and does not know which completion is right"
    assert verdict(completions(0.5)).word == "not informed"
    assert "worked solutions" in sentences(verdict(completions(0.5)))[-1]
    # An informed teacher makes wrong completions less likely: the gain's sign alone decides nothing.
    wrong = verdict(completions(0.9, wrong=-0.8, rewards=(0.0, 0.0, 0.0)))
    assert wrong.word == "informed" and wrong.gain < -0.7 and wrong.knows.prompts == 0


# --- the comparisons, and the check of a training --------------------------------------------------------------


def test_contexts_that_could_change_places_stand_out_half_the_time():
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
    assert share_less_likely(own, second, third).mean() > 0.95
    assert share_less_likely(*-torch.rand(3, 4000, 30)).mean() == pytest.approx(0.5, abs=0.03)


# --- real models -----------------------------------------------------------------------------------------------


def test_the_arenas_teacher_reads_a_worked_solution_and_not_an_answer():
    def found(*words):
        settings = ["--per_device_train_batch_size", "32", *words]
        run = teacher_config(None, "arena", "arena/chain/default", "arena", settings)
        return examine(run, n=24, samples=2)

    read, about = found()
    assert read.word == "informed" and read.reads.share > 0.65 and about["sources"] == ["privileged_context"]
    assert (about["prompts"], about["completions"]) == (24, 48) and 0 < about["right"] < 48
    with pytest.raises(InputError, match="max_completion_length: no completion was scored"):
        found("--mask_truncated_completions", "true", "--max_completion_length", "2")
    blind, _ = found("--privileged_column", "answer")
    assert blind.word == "not informed" and blind.reads.share < 0.65


def test_every_batch_is_scored_with_the_functions_that_its_own_prompts_show(tmp_path):
    """The last batch has fewer rollouts than the first, and its functions are others."""
    run = teacher_config(None, "arena", "arena/errands/easy", None, ["--per_device_train_batch_size", "4"])
    found, about = examine(run, n=3, samples=2)
    assert about["sources"] == ["environment"] and found.reads.prompts == 3
    functions = [
        {"type": "function", "function": {"name": name, "description": "", "parameters": {"type": "object"}}}
        for name in ("add", "double", "halve")
    ]
    rows = tmp_path / "rows.jsonl"
    lines = [
        {"prompt": [{"role": "user", "content": "12 +5"}], "solution": function["function"]["name"]}
        | {"tools": [function]}
        for function in functions
    ]
    rows.write_text("\n".join(map(json.dumps, lines)))
    words = ["--per_device_train_batch_size", "4", "--max_completion_length", "4"]
    run = teacher_config(None, "arena", str(rows), None, words)
    trainer = make_trainer(sampling_config(run, 2, str(tmp_path / "run")))
    rendered = []
    for part in (lines[:2], lines[2:]):
        batch = sample(trainer, part, seed=0)
        rendered.append((sampled_engine(trainer), batch))
    for engine, batch in rendered:
        shown = engine.render(batch.prompts, None)
        assert [engine.tokenizer.decode(ids).count("halve") for ids in shown] == [
            int(row["solution"] == "halve") for row in batch.rows
        ]
        own = batch.student.ids_BP, batch.student.attention_BP.bool()
        assert shown == [ids[kept].tolist() for ids, kept in zip(*own, strict=True)]


@pytest.mark.parametrize(("column", "warns"), [("answer", True), ("privileged_context", False)])
def test_a_training_warns_where_the_teacher_reads_nothing(tmp_path, caplog, column, warns):
    words = ["--per_device_train_batch_size", "32", "--num_generations", "2", "--max_steps", "3"]
    words += ["--teacher_check_steps", "1", "--save_strategy", "no", "--privileged_column", column]
    run = ["--model", "arena", "--dataset", "arena/chain/default", "--reward", "arena"]
    trainer = make_trainer(load_config(None, [*run, *words, "--output_dir", str(tmp_path)]))
    with caplog.at_level(logging.WARNING, logger="gear_rl"):
        trainer.train()
    assert len(trainer.teacher_check.values) == PROMPTS_TO_JUDGE
    assert any("does not seem to read" in record.message for record in caplog.records) == warns
