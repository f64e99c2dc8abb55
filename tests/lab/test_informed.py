"""The verdict on a teacher, from numbers of which the truth is known."""

import random
from dataclasses import replace

import pytest

from gear_rl.lab.informed import Scored, as_dict, sentences, verdict


def completions(
    stands_out, gain_right=0.0, gain_wrong=0.0, prompts=32, rewards=(1.0, 1.0, 0.0, 0.0), seed=0, likelier=0.5
):
    """Gains per token with noise around what is said; ``stands_out`` is the chance of each comparison."""
    rng = random.Random(seed)
    scored = []
    for prompt in range(prompts):
        for reward in rewards:
            gain = (gain_right if reward else gain_wrong) + rng.gauss(0, 0.1)
            out = (float(rng.random() < stands_out) + float(rng.random() < stands_out)) / 2
            more = (float(rng.random() < likelier) + float(rng.random() < likelier)) / 2
            scored.append(
                Scored(
                    prompt=prompt,
                    own=-1 + gain,
                    other=-1,
                    none=-1,
                    stands_out=out,
                    likelier=more,
                    reward=reward,
                )
            )
    return scored


def without_reward(scored):
    return [replace(one, reward=None) for one in scored]


def test_a_context_that_stands_out_is_read_and_one_that_does_not_is_not():
    assert verdict(without_reward(completions(0.85))).word == "informed"
    assert verdict(without_reward(completions(0.6))).word == "weak"
    assert verdict(without_reward(completions(0.5))).word == "not informed"


def test_a_context_that_makes_the_completions_likelier_is_read_and_one_that_makes_them_less_likely_too():
    for likelier, word in [(0.85, "informed"), (0.6, "weak"), (0.5, "not informed"), (0.15, "informed")]:
        found = verdict(without_reward(completions(0.5, likelier=likelier)))
        assert found.word == word, likelier
    assert found.likelier.share < 0.3 and "likelier than they do in" in sentences(found)[2]


@pytest.mark.parametrize("seed", range(20))
def test_chance_is_seldom_called_informed(seed):
    assert verdict(without_reward(completions(0.5, seed=seed))).word != "informed"


def test_the_reward_decides_where_prompts_have_both():
    assert verdict(completions(0.5, gain_right=0.3, gain_wrong=-0.3)).word == "informed"
    assert verdict(completions(0.9)).word == "weak", "it reads, and does not know which completion is right"
    assert verdict(completions(0.5)).word == "not informed"


def test_wrong_completions_may_lose_without_a_word_against_the_teacher():
    """An informed teacher makes wrong completions less likely: the sign of the gain says nothing by itself."""
    found = verdict(completions(0.9, gain_wrong=-0.8, rewards=(0.0, 0.0, 0.0)))
    assert found.word == "informed" and found.gain < -0.7 and found.knows.prompts == 0


def test_few_prompts_with_both_do_not_decide():
    both = completions(0.9, prompts=3)
    wrong = completions(0.9, prompts=29, rewards=(0.0, 0.0), seed=1)
    moved = [replace(one, prompt=one.prompt + 3) for one in wrong]
    found = verdict(both + moved)
    assert found.word == "informed" and found.knows.prompts == 3
    assert "too few to decide" in sentences(found)[3]


def test_a_single_prompt_proves_nothing():
    found = verdict(without_reward(completions(1.0, prompts=1)))
    assert found.word == "not informed" and found.reads.interval is None
    assert as_dict(found)["reads"] == {"share": 1.0, "interval": None, "prompts": 1}
    two = verdict(without_reward(completions(1.0, prompts=2)))
    assert (two.word, two.reads.interval) == ("not informed", None)
    assert "in 100 % (too few for an interval) of" in sentences(two)[1]


def test_what_helps_is_said_where_it_is_needed():
    assert sentences(verdict(completions(0.9, gain_right=1.0)))[0] == "the teacher is informed"
    assert "worked solutions" in sentences(verdict(completions(0.5)))[-1]
