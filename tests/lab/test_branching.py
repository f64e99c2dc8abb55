"""The ceiling by branching rollouts: against every continuation, against formulas, and against TRL's own loop."""

from dataclasses import dataclass, replace
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gear_rl.arena.errands.problem import Call
from gear_rl.arena.model import EOS
from gear_rl.arena.task import get_task
from gear_rl.lab.branching import Begun, Continuations, SharedNoise, branched
from gear_rl.lab.compare import plan_of
from gear_rl.lab.oracle import Oracle, told, told_by
from gear_rl.lab.replay import serving
from gear_rl.lab.training import cell_trainer, run_cell
from gear_rl.runs.machine import quiet_libraries
from gear_rl.signals.batch import Completions, Prompts, RolloutBatch
from support.commands import untouched

LONG, WORDS = 3, 3
"""Tokens of every completion, and tokens there are."""
TEMPERATURE = 0.7
ENGINE: Any = SimpleNamespace()


def chances(before: tuple[int, ...]) -> torch.Tensor:
    """A policy that depends on what it wrote: probabilities of the three tokens."""
    return torch.softmax(logits_after(before) / TEMPERATURE, -1)


def logits_after(before: tuple[int, ...]) -> torch.Tensor:
    return torch.tensor([0.3, -0.2, 0.1]) * (1.0 + 0.5 * len(before) + 0.7 * sum(before))


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


class Backbone(torch.nn.Module):
    """Hidden states are the logits: after a prompt, which token 9 ends, and has no padding in it."""

    def forward(self, input_ids: Any, attention_mask: Any, **_: Any) -> Any:
        hidden = torch.zeros(*input_ids.shape, WORDS)
        for b, (row, seen) in enumerate(zip(input_ids.tolist(), attention_mask.tolist(), strict=True)):
            for t in range(len(row)):
                attended = [token for token, there in zip(row[: t + 1], seen, strict=False) if there]
                if 9 in attended and 0 not in attended[: attended.index(9)]:
                    hidden[b, t] = logits_after(tuple(attended[attended.index(9) + 1 :]))
        return (hidden,)


class Policy(torch.nn.Module):
    """The same policy as a model; it has dropout, so that it is another one while it trains."""

    config = SimpleNamespace(model_type="toy")

    def __init__(self) -> None:
        super().__init__()
        self.base_model = Backbone()
        self.dropout = torch.nn.Dropout(0.9)

    def forward(self, input_ids: Any, attention_mask: Any, **_: Any) -> Any:
        (hidden,) = self.base_model(self.dropout(input_ids.float()).long(), attention_mask)
        return SimpleNamespace(logits=hidden)

    def get_output_embeddings(self) -> Any:
        return SimpleNamespace(weight=torch.eye(WORDS), bias=None)


def policy_trainer(seed: int) -> Any:
    args = SimpleNamespace(seed=seed, per_device_eval_batch_size=2)
    alone = SimpleNamespace(device=torch.device("cpu"))
    return SimpleNamespace(args=args, model=Policy().train(), accelerator=alone, temperature=TEMPERATURE)


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


def rollouts(completions: list[tuple[int, ...]], *, mask: Any = None, group: Any = None) -> RolloutBatch:
    """Prompts of one token and of three, one with padding on its left."""
    ids = torch.tensor(completions)
    count = len(completions)
    rewards = [worth(one) for one in completions]
    rewards_B = torch.tensor(rewards)
    group = [0] * count if group is None else group
    prompts = torch.tensor([[9, 9, 9] if g else [7, 7, 9] for g in group])
    attention = torch.tensor([[1, 1, 1] if g else [0, 0, 1] for g in group])
    prompts[attention == 0] = 0
    prompts[prompts == 9] = torch.where(torch.arange(3) == 2, 9, 8).expand_as(prompts)[prompts == 9]
    return RolloutBatch(
        step=5,
        completions=Completions(
            ids=ids,
            attention=torch.ones_like(ids),
            mask=torch.ones_like(ids).bool() if mask is None else mask,
        ),
        student=Prompts(ids_BP=prompts, attention_BP=attention),
        prompts=["?"] * count,
        rows=[{"prompt": "?", "number": g} for g in group],
        messages=[""] * count,
        advantage_B=rewards_B,
        rewards=rewards,
        rewards_BR=rewards_B[:, None],
        group=group,
        first=0,
        num_rollouts=count,
    )


def test_it_comes_to_the_true_advantage_of_every_token() -> None:
    """The mean over many branches against the sum over all continuations: no token's estimate is biased."""
    shown = [(0, 1, 0), (1, 0, 2), (2, 2, 2)]
    estimate = branched(policy_trainer(0), finished, 4096)(rollouts(shown, group=[0, 1, 2]), ENGINE)
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
    estimate = branched(policy_trainer(seed), finished, branches)(rollouts([ids]), ENGINE)
    noise = SharedNoise(vocabulary=WORDS, seed=(seed, 5))
    start = [Begun(prompt=(9,), written=(), branch=m, row={}) for m in range(branches)]
    of_prompt = sum(finished(start, noise)) / branches
    assert float(estimate.sum()) == pytest.approx(worth(ids) - of_prompt, abs=1e-5)


def test_what_a_tool_wrote_is_worth_nothing() -> None:
    mask = torch.tensor([[True, False, True]])
    estimate = branched(policy_trainer(0), finished, 64)(rollouts([(2, 0, 1)], mask=mask), ENGINE)
    assert estimate[0, 1] == 0.0 and estimate[0, 0] != 0.0


def test_a_branch_that_draws_the_same_tokens_has_nothing_to_say() -> None:
    """And nothing is run for it."""
    noise = SharedNoise(vocabulary=WORDS, seed=(7, 5))
    ids: tuple[int, ...] = ()
    for t in range(LONG):
        ids = (*ids, int((chances(ids).log() + noise.rows([0], [t])[0]).argmax()))
    asked: list[Begun] = []

    def kept(begun: Any, given: SharedNoise) -> list[float]:
        asked.extend(begun)
        return finished(begun, given)

    estimate = branched(policy_trainer(7), kept, 1)(rollouts([ids]), ENGINE)
    assert not asked and not estimate.any()


def test_siblings_that_leave_alike_are_run_once_and_other_rows_by_themselves() -> None:
    """Two rows may have one prompt and other answers."""
    asked: list[Begun] = []

    def kept(begun: Any, given: SharedNoise) -> list[float]:
        asked.extend(begun)
        return finished(begun, given)

    once = branched(policy_trainer(1), kept, 8)(rollouts([(0, 2, 1)]), ENGINE)
    count = len(asked)
    twice = branched(policy_trainer(1), kept, 8)(rollouts([(0, 2, 1)] * 2), ENGINE)
    assert len(asked) == 2 * count > 0 and torch.equal(twice, once.expand(2, -1))
    asked.clear()
    branched(policy_trainer(1), kept, 8)(rollouts([(0, 2, 1)] * 3, group=[1, 1, 2]), ENGINE)
    assert {one.row["number"] for one in asked} == {1, 2}
    assert not {one.branch for one in asked if one.row["number"] == 1} & {
        one.branch for one in asked if one.row["number"] == 2
    }


def test_no_branches_are_refused() -> None:
    with pytest.raises(ValueError, match="branches: 0; give 1 or more"):
        Oracle(branches=0)


@dataclass(slots=True)
class Greedy(SharedNoise):
    """No noise: the likeliest token is written."""

    def rows(self, branches: Any, places: Any) -> Any:
        return torch.zeros(len(places), self.vocabulary)


def greedy_of(trainer: Any) -> Greedy:
    return Greedy(vocabulary=trainer.model.config.vocab_size, seed=(0,))


@pytest.fixture(scope="module")
def trainer_of(tmp_path_factory):
    """A trainer of a task's easy tier with the oracle, for one step."""

    def made(task: str, **engine: Any) -> Any:
        plan = plan_of([], task=task, tier="easy", seeds=1, steps=1, rollouts=16, n_eval=8, rates=1)
        spec = replace(plan.reported()[1], engine=engine)
        assert spec.name == "oracle"
        return cell_trainer(spec, str(tmp_path_factory.mktemp("branching")))

    with untouched(None):
        quiet_libraries()
        yield made


def begun_of(trainer: Any, rows: Any, written: Any) -> list[Begun]:
    """The rollouts of the rows, begun as given."""
    prompts = trainer._tokenize_prompts([row["prompt"] for row in rows])[0]
    return [
        Begun(prompt=tuple(prompt), written=tuple(own), branch=b, row=row)
        for b, (prompt, own, row) in enumerate(zip(prompts, written, rows, strict=True))
    ]


@pytest.mark.parametrize(("name", "temperature", "within"), [("codebook", 1.0, 0.22), ("chain", 0.7, 0.4)])
def test_it_agrees_with_the_formula_of_a_task(name, temperature, within, trainer_of) -> None:
    """A real model: what one branch says, many, and the formula. The chain's prompts differ in length."""
    trainer = trainer_of(name, temperature=temperature)
    seen: dict[str, torch.Tensor] = {}

    def both(batch, engine):
        for count, credit in (("few", Oracle(branches=1)), ("many", Oracle(branches=32))):
            trainer.credit = credit
            worth = told(trainer, None)(batch, engine)
            seen[count] = worth[batch.completions.mask]
            if count == "few":
                # A branch is one rollout wherever it starts, so the sum is known to the last digit.
                noise = SharedNoise(
                    vocabulary=trainer.model.config.vocab_size, seed=(trainer.args.seed, batch.step)
                )
                starts = begun_of(trainer, batch.rows, [()] * len(batch.rows))
                starts = [replace(one, branch=group) for one, group in zip(starts, batch.group, strict=True)]
                of_prompt = torch.tensor(Continuations(trainer)(starts, noise))
                same = (torch.tensor(batch.rewards) - worth.sum(-1) - of_prompt).abs() < 1e-5
                assert same.float().mean() > 0.9, "but for ties within the last digits"
        exact = told_by(get_task(name).truth_of("easy"))(batch, engine)
        seen["exact"] = exact[batch.completions.mask]
        return exact

    trainer.credit = Oracle(tell=both)
    trainer.train()
    exact, many = seen["exact"], seen["many"]
    assert float(exact @ many / (exact @ exact)) == pytest.approx(1.0, abs=0.1)
    error, scale = (many - exact).square().mean().sqrt(), exact.square().mean().sqrt()
    assert error < within * scale < (seen["few"] - exact).square().mean().sqrt()


@pytest.mark.parametrize(
    ("name", "engine"),
    [
        ("errands", {}),
        ("errands", {"max_tool_calling_iterations": 2}),
        ("errands", {"max_completion_length": 51}),
    ],
)
def test_agents_play_on_as_trl_plays(name, engine, trainer_of) -> None:
    """From the prompt and from the middle of what was written, greedily: the rewards of TRL's own loop."""
    trainer = trainer_of(name, **engine)
    rows = get_task(name).rows("easy", num=12, first_seed=0)
    theirs = trainer.solve(rows, greedy=True)
    written, messages = trainer.rollouts.ids, trainer.rollouts.messages
    trainer.tool_guard.answers["an answer"] = "raised"
    failed = dict(trainer.tool_guard.answers)
    play_on = Continuations(trainer)
    for share in (0.0, 0.3, 0.6, 1.0):
        begun = begun_of(trainer, rows, [own[: int(share * len(own))] for own in written])
        assert play_on(begun, greedy_of(trainer)) == pytest.approx(theirs), share
    assert 0.0 < sum(theirs) < len(rows), "some succeed and some do not"
    assert trainer.rollouts.messages is messages, "the batch under way is as it was"
    assert trainer.tool_guard.answers == failed


def test_calls_that_are_refused_are_refused_again(trainer_of) -> None:
    """Arguments that are none, and some that only look like others: what TRL's guarded tools say and do."""
    trainer = trainer_of("errands")
    tokenizer = trainer.processing_class
    rows = get_task("errands").rows("easy", num=3, first_seed=0)
    calls = [Call("send", {"thing": "lamp"}), Call("send", {}), Call("wait", {"item": 3})]
    first = [tokenizer(call.text + EOS)["input_ids"] for call in calls]
    second = [tokenizer("done" + EOS)["input_ids"]] * 3
    turns = iter([first, second])
    with serving(trainer, 3, lambda rollouts, ids: next(turns)):
        theirs = trainer.solve(rows)
    written = trainer.rollouts.ids
    assert "error" in str(trainer.rollouts.messages[0])
    assert Continuations(trainer)(begun_of(trainer, rows, written), greedy_of(trainer)) == theirs
    cut = [own[: len(call) + 3] for own, call in zip(written, first, strict=True)]
    Continuations(trainer)(begun_of(trainer, rows, cut), greedy_of(trainer))


def test_an_environment_that_does_not_repeat_itself_is_an_error(trainer_of) -> None:
    trainer = trainer_of("errands")
    [row] = get_task("errands").rows("easy", num=1, first_seed=0)
    trainer.solve([row], greedy=True)
    [written] = trainer.rollouts.ids
    other = trainer.processing_class(" no", add_special_tokens=False)["input_ids"][-1]
    turn = written.index(trainer.processing_class.eos_token_id)
    changed = [*written[: turn + 4], other, *written[turn + 5 :]]
    with pytest.raises(ValueError, match="an environment that repeats itself"):
        Continuations(trainer)(begun_of(trainer, [row], [changed]), greedy_of(trainer))


def test_padding_and_neighbours_change_nothing(trainer_of) -> None:
    """Nor does what the model's own file says of sampling; a completion that is full is judged as it is."""
    trainer = trainer_of("codebook", max_completion_length=10)
    rows = [
        row
        for tier in ("easy", "default", "k8")
        for row in get_task("codebook").rows(tier, num=2, first_seed=0)
    ]
    texts = ["codes", "codes Mo", ""] * 2
    begun = begun_of(trainer, rows, [trainer.processing_class(text)["input_ids"] for text in texts])
    assert len({len(one.prompt) for one in begun}) == 3
    noise = SharedNoise(vocabulary=trainer.model.config.vocab_size, seed=(0,))
    play_on = Continuations(trainer)
    together = play_on(begun, noise)
    trainer.model.generation_config.repetition_penalty = 5.0
    assert [play_on([one], noise)[0] for one in begun] == together
    right = f"codes {rows[0]['answer']}"
    whole = begun_of(trainer, rows[:1], [trainer.processing_class(right + EOS)["input_ids"]])
    assert play_on(whole, noise) == [1.0]


def test_a_task_without_a_formula_has_a_ceiling(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(type(get_task("errands")), "truth_of", lambda task, tier: None)
    small = {"seeds": 1, "steps": 1, "rollouts": 8, "n_eval": 4, "samples": 1, "rates": 1}
    plan = plan_of([], task="errands", tier="easy", **small)
    assert [*plan.methods] == ["uniform", "oracle"] and plan.ceiling == "oracle"
    with untouched(None):
        row = run_cell(replace(plan.reported()[1], n_between=0), tmp_path)
    assert row["error"] is None and row["fallbacks"] == 0


def test_another_number_of_branches_is_the_ceiling_itself() -> None:
    plan = plan_of(["oracle:branches=16", "gear"], task="errands", tier="easy", seeds=1, rates=1)
    assert [*plan.methods] == [
        "uniform",
        "oracle:branches=16",
        "gear",
    ] and plan.ceiling == "oracle:branches=16"
    assert "branches=16" in plan.reported()[1].resolved
