"""The model's own mistakes: what is scored is what it wrote, and the truth says which tokens are wrong."""

import pytest

from gear_rl.arena.task import get_task
from gear_rl.arena.token_truth import Truth
from gear_rl.errors import InputError
from gear_rl.lab.own_mistakes import own_mistakes
from gear_rl.lab.scoring import score
from support.commands import gear


def test_a_mistake_is_the_first_token_of_a_wrong_decision_or_loses_decisions():
    truth = Truth(
        decision=(0, -1, 1, 1, -1, 2, -1),
        right=(True, False, False, False, False, False, True),
        right_id=(5, -1, 6, 6, 7, 8, 9),
        lost=((), (), (), (), (2, 3), (), (4,)),
        num_decisions=5,
        exact=False,
    )
    assert truth.mistakes == (2, 4, 5)


@pytest.mark.parametrize(("task", "tier"), [("chain", "easy"), ("codebook", "default"), ("errands", "easy")])
def test_what_the_model_wrote_is_scored(task, tier):
    of = get_task(task)
    material = own_mistakes(task, tier, n=12, steps=0)
    assert 4 <= len(material.pairs) == len(material.blind) == material.about["n"] <= 12
    for pair, blind in zip(material.pairs, material.blind, strict=True):
        ids = [token for turn in pair.case.faulty for token in turn]
        assert pair.case.fault == of.truth(ids, pair.row, material.engine.tokenizer).mistakes
        right_id = of.truth(ids, pair.row, material.engine.tokenizer).right_id
        assert all(ids[t] != right_id[t] for t in pair.case.fault)
        assert blind.case.faulty == pair.case.faulty and blind.messages == pair.messages
        assert blind.row != pair.row
    rewards_BR = material.rewards(material.pairs, {"name": "gear"})
    assert (rewards_BR[0::2] < rewards_BR[1::2]).all()
    if task == "codebook":
        found = score({"gear": {"name": "gear"}}, material)["methods"]
        assert found["gear"]["auc"] > 0.9 > 0.6 > found["shuffled"]["auc"]


def test_the_student_is_trained_and_the_teacher_is_not():
    engine = own_mistakes("codebook", "easy", n=8, steps=1).engine
    pairs = zip(engine.model.parameters(), engine.teacher_model.parameters(), strict=True)
    assert any((student != teacher).any() for student, teacher in pairs)


def test_a_tier_without_a_formula_is_refused():
    with pytest.raises(InputError, match="codebook/words are wrong; leave it out"):
        own_mistakes("codebook", "words", n=8, steps=0)


def test_the_command_says_whose_mistakes_they_are():
    done = gear(
        "score", "--task", "codebook", "--tier", "easy", "--trained", "0", "--n", "8", "--methods", "gear"
    )
    assert done.returncode == 0, done.stderr
    assert "codebook/easy after 0 steps of GRPO: " in done.stdout and "own faults" in done.stdout
