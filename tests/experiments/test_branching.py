"""The ceiling by branching rollouts: against every continuation, against formulas, and against TRL's own loop."""

from dataclasses import dataclass, replace
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gear_rl.arena.calls import render_ids, tools_of
from gear_rl.arena.task import get_task
from gear_rl.credit.batch import RolloutBatch
from gear_rl.engines.trl.branches import Begun, SharedNoise, continuations
from gear_rl.engines.trl.branches_with_tools import played_out
from gear_rl.experiments.branching import branched
from gear_rl.experiments.cells import cell_trainer, run_cell
from gear_rl.experiments.compare import plan_of
from gear_rl.experiments.oracle import Oracle, estimated, told_by
from gear_rl.runs.machine import quiet_libraries
from gear_rl.signals.score import Completions, Prompts
from support.commands import untouched

PROMPT, LONG, WORDS = 4, 3, 3
"""A prompt's one token, tokens of every completion, and tokens there are."""
ALONE: Any = SimpleNamespace(world_size=1)


def chances(before: tuple[int, ...]) -> torch.Tensor:
    """A policy that depends on what it wrote: probabilities of the three tokens."""
    sharp = 1.0 + 0.5 * len(before) + 0.7 * sum(before)
    return torch.softmax(torch.tensor([0.3, -0.2, 0.1]) * sharp, -1)


def worth(ids: tuple[int, ...]) -> float:
    """A reward in which no token is for itself."""
    return (ids[0] == ids[2]) + 0.5 * (ids[1] == 1) - 0.25 * (ids == (2, 2, 2))


def value(before: tuple[int, ...]) -> float:
    """The slow twin: every completion that begins so, each with its probability."""
    total = 0.0
    for rest in product(range(WORDS), repeat=LONG - len(before)):
        ids, chance = before, 1.0
        for token in rest:
            chance *= float(chances(ids)[token])
            ids = (*ids, token)
        total += chance * worth(ids)
    return total


class Policy(torch.nn.Module):
    """The same policy as a model with one token of prompt."""

    def forward(self, input_ids: Any, **_: Any) -> Any:
        logits = torch.zeros(*input_ids.shape, WORDS)
        for b, row in enumerate(input_ids.tolist()):
            for t in range(len(row)):
                logits[b, t] = chances(tuple(row[1 : t + 1])).log()
        return SimpleNamespace(logits=logits)

    def get_output_embeddings(self) -> Any:
        return SimpleNamespace(weight=torch.zeros(WORDS, 1))


def finished(begun: Any, noise: SharedNoise) -> list[float]:
    """Each continued in Python, with the noise of its branch."""
    rewards: list[float] = []
    for one in begun:
        ids = one.written
        while len(ids) < LONG:
            [own] = noise.rows([one.branch], [len(ids)])
            ids = (*ids, int((chances(ids).log() + own).argmax()))
        rewards.append(worth(ids))
    return rewards


def rollouts(completions: list[tuple[int, ...]], mask: Any = None) -> RolloutBatch:
    ids = torch.tensor(completions)
    count = len(completions)
    rewards = [worth(one) for one in completions]
    rewards_B = torch.tensor(rewards)
    return RolloutBatch(
        step=5,
        completions=Completions(
            ids=ids,
            attention=torch.ones_like(ids),
            mask=torch.ones_like(ids).bool() if mask is None else mask,
        ),
        student=Prompts(ids_BP=torch.full((count, 1), PROMPT), attention_BP=torch.ones(count, 1).long()),
        prompts=["?"] * count,
        rows=[{"prompt": "?"}] * count,
        messages=[""] * count,
        advantage_B=rewards_B,
        rewards=rewards,
        rewards_BR=rewards_B[:, None],
        group=[0] * count,
        first=0,
        num_rollouts=count,
    )


def policy_trainer(seed: int) -> Any:
    args = SimpleNamespace(seed=seed, max_completion_length=LONG, temperature=1.0)
    alone = SimpleNamespace(device=torch.device("cpu"))
    return SimpleNamespace(args=args, model=Policy(), accelerator=alone)


def test_it_comes_to_the_true_advantage_of_every_token() -> None:
    """The mean over many branches against the sum over all continuations: no token's estimate is biased."""
    shown = [(0, 1, 0), (1, 0, 2), (2, 2, 2)]
    estimate = branched(policy_trainer(0), finished, 4096)(rollouts(shown), ALONE)
    want = [[value(ids[: t + 1]) - value(ids[:t]) for t in range(LONG)] for ids in shown]
    # Rewards have a deviation below 0.7, so a mean of 4096 one below 0.011.
    assert (estimate - torch.tensor(want)).abs().max() < 0.04
    assert torch.tensor(want).abs().min() > 0.01, "every token is worth something here"


@settings(max_examples=25, deadline=None)
@given(
    ids=st.tuples(*[st.integers(0, WORDS - 1)] * LONG), branches=st.integers(1, 4), seed=st.integers(0, 99)
)
def test_advantages_add_up_to_what_the_completion_has_over_its_prompt(
    ids: tuple[int, ...], branches: int, seed: int
) -> None:
    estimate = branched(policy_trainer(seed), finished, branches)(rollouts([ids]), ALONE)
    noise = SharedNoise(branches=branches, room=LONG, vocabulary=WORDS, seed=(seed, 5))
    start = [Begun(prompt=(PROMPT,), written=(), branch=m, row={}) for m in range(branches)]
    of_prompt = sum(finished(start, noise)) / branches
    assert float(estimate.sum()) == pytest.approx(worth(ids) - of_prompt, abs=1e-5)


def test_what_a_tool_wrote_is_worth_nothing() -> None:
    mask = torch.tensor([[True, False, True]])
    estimate = branched(policy_trainer(0), finished, 64)(rollouts([(2, 0, 1)], mask), ALONE)
    assert estimate[0, 1] == 0.0 and estimate[0, 0] != 0.0


def test_a_branch_that_draws_the_same_tokens_has_nothing_to_say() -> None:
    """And nothing is run for it."""
    noise = SharedNoise(branches=1, room=LONG, vocabulary=WORDS, seed=(7, 5))
    ids: tuple[int, ...] = ()
    for t in range(LONG):
        ids = (*ids, int((chances(ids).log() + noise.rows([0], [t])[0]).argmax()))
    asked: list[Begun] = []

    def kept(begun: Any, given: SharedNoise) -> list[float]:
        asked.extend(begun)
        return finished(begun, given)

    estimate = branched(policy_trainer(7), kept, 1)(rollouts([ids]), ALONE)
    assert not asked and not estimate.any()


def test_siblings_that_leave_alike_are_run_once() -> None:
    asked: list[Begun] = []

    def kept(begun: Any, given: SharedNoise) -> list[float]:
        asked.extend(begun)
        return finished(begun, given)

    once = branched(policy_trainer(1), kept, 8)(rollouts([(0, 2, 1)]), ALONE)
    count = len(asked)
    twice = branched(policy_trainer(1), kept, 8)(rollouts([(0, 2, 1)] * 2), ALONE)
    assert len(asked) == 2 * count > 0 and torch.equal(twice, once.expand(2, -1))


def test_several_processes_are_refused() -> None:
    with pytest.raises(ValueError, match="oracle: branching rollouts run in one process"):
        branched(policy_trainer(0), finished, 1)(rollouts([(0, 0, 0)]), SimpleNamespace(world_size=2))
    with pytest.raises(ValueError, match="branches: 0; give 1 or more"):
        Oracle(branches=0)


@dataclass(slots=True)
class Greedy(SharedNoise):
    """No noise: the likeliest token is written."""

    def rows(self, branches: Any, places: Any) -> Any:
        return torch.zeros(len(places), self.vocabulary)


def greedy_of(trainer: Any) -> Greedy:
    """For all that a trainer's model can write."""
    return Greedy(1, trainer.args.max_completion_length, trainer.model.config.vocab_size, (0,))


@pytest.fixture(scope="module")
def trainer_of(tmp_path_factory):
    """A trainer of a task's easy tier with the oracle, for one step."""

    def made(task: str, **settings: Any) -> Any:
        plan = plan_of([], task=task, tier="easy", seeds=1, steps=1, n_eval=8, rates=1, **settings)
        _, spec = plan.reported(plan.own_rates)
        assert spec.name == "oracle"
        return cell_trainer(spec, str(tmp_path_factory.mktemp("branching")))

    with untouched(None):
        quiet_libraries()
        yield made


def test_it_agrees_with_the_formula_of_a_task(trainer_of) -> None:
    """Independent decisions of a real model: told by formula and by 32 branches."""
    trainer = trainer_of("codebook")
    seen: dict[str, torch.Tensor] = {}

    def both(batch, engine):
        for name, credit in (("few", Oracle(branches=2)), ("many", Oracle(branches=32))):
            trainer.credit = credit
            seen[name] = estimated(trainer)(batch, engine)[batch.completions.mask]
        exact = told_by(get_task("codebook").truth_of("easy"))(batch, engine)
        seen["exact"] = exact[batch.completions.mask]
        return exact

    trainer.truth = both
    trainer.train()
    exact, many = seen["exact"], seen["many"]
    assert float(exact @ many / (exact @ exact)) == pytest.approx(1.0, abs=0.1)
    error, scale = (many - exact).square().mean().sqrt(), exact.square().mean().sqrt()
    assert error < 0.25 * scale < (seen["few"] - exact).square().mean().sqrt()


@pytest.mark.parametrize("name", ["ledger", "errands"])
def test_agents_play_on_as_trl_plays(name, trainer_of) -> None:
    """From the prompt and from the middle of what was written, greedily: the rewards of TRL's own loop."""
    trainer, task = trainer_of(name), get_task(name)
    environment = task.environment("easy")
    rows = task.rows("easy", num=12, first_seed=0)
    theirs = trainer.solve(rows, greedy=True)
    written = trainer.rollouts.ids  # tool answers included
    instance = environment()
    instance.reset(**rows[0])
    prompts = [
        tuple(render_ids(trainer.processing_class, row["prompt"][0]["content"], tools_of(instance)))
        for row in rows
    ]
    finish, greedy = played_out(trainer, environment), greedy_of(trainer)
    for share in (0.0, 0.3, 0.6, 1.0):
        begun = [
            Begun(prompt=prompt, written=tuple(own[: int(share * len(own))]), branch=0, row=row)
            for prompt, own, row in zip(prompts, written, rows, strict=True)
        ]
        assert finish(begun, greedy) == pytest.approx(theirs), share
    assert 0.0 < sum(theirs) < len(rows), "some succeed and some do not"


def test_an_environment_that_does_not_repeat_itself_is_an_error(trainer_of) -> None:
    trainer, task = trainer_of("errands"), get_task("errands")
    environment: Any = task.environment("easy")
    [row] = task.rows("easy", num=1, first_seed=0)
    trainer.solve([row], greedy=True)
    [written] = trainer.rollouts.ids

    class Other(environment):
        def send(self, item: str, code: str) -> str:
            """Send an item.

            Args:
                item: Item
                code: Code
            """
            super().send(item, code)
            return "no"

    begun = Begun(prompt=(), written=tuple(written), branch=0, row=row)
    with pytest.raises(ValueError, match="its tools do not repeat themselves"):
        played_out(trainer, Other)([begun], greedy_of(trainer))


def test_a_full_completion_is_left_as_it_is(trainer_of) -> None:
    trainer = trainer_of("codebook")
    end = trainer.processing_class.eos_token_id
    noise = SharedNoise(branches=1, room=3, vocabulary=greedy_of(trainer).vocabulary, seed=(0,))
    begun = [((5, 6), (7, 8, 9), 0), ((5, 6), (7, end), 0), ((5,), (7,), 0), ((5, 6), (), 0)]
    done = continuations(trainer, begun, noise, batch_size=2)
    assert done[:2] == [[7, 8, 9], [7, end]]
    assert done[2][0] == 7 and all(len(ids) == 3 or ids[-1] == end for ids in done[2:])
    alone = continuations(trainer, begun[2:3], noise)
    assert alone == done[2:3], "padding and neighbours change nothing"


def test_a_task_without_a_formula_has_a_ceiling(tmp_path) -> None:
    assert get_task("ledger").truth_of("easy") is None
    plan = plan_of([], task="ledger", tier="easy", seeds=1, steps=1, rollouts=8, n_eval=4, samples=1, rates=1)
    assert [*plan.methods] == ["uniform", "oracle"] and plan.ceiling == "oracle"
    with untouched(None):
        row = run_cell(replace(plan.reported(plan.own_rates)[1], n_between=0), tmp_path)
    assert row["error"] is None and row["fallbacks"] == 0
