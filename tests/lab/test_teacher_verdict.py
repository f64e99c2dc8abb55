"""Is the teacher informed: verdicts of which the truth is known."""

import random

import pytest

from gear_rl.lab.teacher_verdict import Scored, sentences, verdict


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
    few = verdict(completions(0.5, prompts=4, reward=False))
    assert (few.word, sentences(few)[-1]) == (
        "not informed",
        "4 prompts are too few to tell; give more (--n)",
    )
    # An informed teacher makes wrong completions less likely: the gain's sign alone decides nothing.
    wrong = verdict(completions(0.9, wrong=-0.8, rewards=(0.0, 0.0, 0.0)))
    assert wrong.word == "informed" and wrong.gain < -0.7 and wrong.knows.prompts == 0
