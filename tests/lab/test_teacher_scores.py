"""gear teacher with a real model: what its verdict rests on."""

import pytest

from gear_rl.errors import InputError
from gear_rl.lab.teacher_scores import examine, teacher_config


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
