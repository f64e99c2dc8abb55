"""What a run's rewards come to: means, successes and the outcome that a comparison rests on."""

import math

import pytest
import torch

from gear_rl.credit.contexts import Rollout, find_contexts, wrong_contexts
from gear_rl.engines.trl.evaluation import success_metrics
from gear_rl.errors import InputError
from gear_rl.lab.cells import outcome_of
from gear_rl.lab.teacher_verdict import Scored, verdict
from gear_rl.lab.training import score_of
from gear_rl.runs.arena import sampled_rewards
from lab.test_verdict import cell


def test_the_outcome_is_the_reward_where_rewards_are_graded():
    [rewards] = sampled_rewards(lambda rows, *, seed: [0.5, 0.49, None, 0.75], range(4), seed=0)
    score = score_of(1, [rewards], right=0.5)
    cells = [cell("uniform", n, 0.0, graded=n == 1) for n in range(2)]
    assert (score.value(outcome_of(cells)), score.value(outcome_of(cells[:1]))) == (1.74 / 3, 2 / 3)


@pytest.mark.parametrize(
    ("reward", "message"), [(None, "every function gave None"), (-math.inf, "-inf for a held-")]
)
def test_rewards_that_cannot_be_averaged_fail_the_run(reward, message):
    with pytest.raises(InputError, match=f"reward: {message}"):
        sampled_rewards(lambda rows, *, seed: [reward], [{}], seed=0)


def test_float32_takes_no_success_away():
    almost = float(torch.tensor(0.7))
    assert almost < 0.7 and score_of(0, [[almost, 0.69]], right=0.7).value("success") == 0.5
    assert success_metrics([[almost], [0.69]], 0.7, "eval")["eval_pass@1"] == 0.5
    same = {"prompt": 0, "other": 0.0, "none": 0.0, "stands_out": 0.5, "likelier": 0.5}
    scored = [Scored(own=own, reward=reward, **same) for own, reward in ((1.0, almost), (0.0, 0.0))]
    assert verdict(scored, 0.7).knows.share == 1.0
    tries = [Rollout(completion=text, text=text, reward=almost, group=0, feedback="no") for text in "ab"]
    assert find_contexts([{}], tries, ["feedback", "sibling"], success_reward=0.7) == [("sibling", "b")]
    assert wrong_contexts([{}], ["x"], tries, "sibling", success_reward=0.7) == [None]
