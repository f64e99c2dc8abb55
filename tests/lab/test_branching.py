"""True advantages by branching rollouts, against all continuations and TRL's loop."""

from dataclasses import replace
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gear_rl.arena.model import EOS
from gear_rl.arena.task import get_task
from gear_rl.lab.branching import Begun, Continuations, SharedNoise, branched_advantages
from gear_rl.lab.comparison import plan_of
from gear_rl.lab.oracle import Oracle, by_formula, estimate_of
from gear_rl.lab.training import cell_trainer
from gear_rl.rollouts import Prompts
from gear_rl.runs.machine import quiet_libraries
from support.batches import batch_of
from support.commands import untouched

# --- by branches, of a policy of three tokens ------------------------------------------------------------------

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


def estimated(completions, branches, *, seed=0, mask=None, group=None) -> tuple[torch.Tensor, list[Begun]]:
    """The advantages of completions, and what was begun for them; prompts of one token and of three."""
    ids, count = torch.tensor(completions), len(completions)
    rewards = [worth(one) for one in completions]
    group = [0] * count if group is None else group
    student = Prompts(
        ids_BP=torch.tensor([[8, 8, 9] if g else [0, 0, 9] for g in group]),
        attention_BP=torch.tensor([[1, 1, 1] if g else [0, 0, 1] for g in group]),
    )
    rows = [{"prompt": "?", "number": g} for g in group]
    batch = batch_of(ids, mask, step=5, student=student, rows=rows, rewards=rewards, group=group)
    trainer: Any = SimpleNamespace(
        args=SimpleNamespace(seed=seed, per_device_eval_batch_size=2),
        model=Policy().train(),
        accelerator=SimpleNamespace(device=torch.device("cpu")),
        temperature=TEMPERATURE,
        run_state={},
        **dict.fromkeys(("_logs", "_metrics", "_pending_metrics", "_pending_extra_logs")),
    )
    begun: list[Begun] = []

    def kept(some: Any, noise: SharedNoise) -> list[float]:
        begun.extend(some)
        return finished(some, noise)

    return branched_advantages(trainer, kept, branches)(batch, ENGINE), begun


def test_the_mean_over_branches_is_the_true_advantage_of_every_token() -> None:
    """Many branches against the sum over all continuations: no token's estimate is biased."""
    shown = [(0, 1, 0), (1, 0, 2), (2, 2, 2)]
    estimate, _ = estimated(shown, 4096, group=[0, 1, 2])
    want = [[value(ids[: t + 1]) - value(ids[:t]) for t in range(LONG)] for ids in shown]
    # Rewards have a deviation below 0.7, so a mean of 4096 one below 0.011.
    assert (estimate - torch.tensor(want)).abs().max() < 0.04
    assert torch.tensor(want).abs().min() > 0.01, "every token is worth something here"


@pytest.mark.parametrize("ids", [(0, 0, 0), (0, 1, 2), (2, 2, 2), (1, 2, 0)])
@pytest.mark.parametrize(("branches", "seed"), [(1, 0), (2, 1), (4, 2)])
def test_advantages_add_up_to_what_the_completion_has_over_its_prompt(ids, branches, seed) -> None:
    estimate, begun = estimated([ids], branches, seed=seed)
    noise = SharedNoise(vocabulary=WORDS, seed=(seed, 5))
    start = [Begun(prompt=(9,), written=(), branch=m, row={}) for m in range(branches)]
    of_prompt = finished(start, noise)
    assert float(estimate.sum()) == pytest.approx(worth(ids) - sum(of_prompt) / branches, abs=1e-5)
    left = {one.branch for one in begun}
    assert all(of_prompt[m] == worth(ids) for m in range(branches) if m not in left), "others draw the same"


def test_a_tools_answer_is_worth_nothing() -> None:
    estimate, _ = estimated([(2, 0, 1)], 64, mask=torch.tensor([[True, False, True]]))
    assert estimate[0, 1] == 0.0 and estimate[0, 0] != 0.0


# --- by branches, through TRL's loop ---------------------------------------------------------------------------


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
        spec = replace(plan.reported_specs()[1], engine=engine)
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
def test_branches_agree_with_the_formula_of_a_task(name, temperature, within, trainer_of) -> None:
    """A real model: one branch, many, and the formula. The chain's prompts differ in length."""
    trainer = trainer_of(name, temperature=temperature)
    seen: dict[str, torch.Tensor] = {}

    def both(batch, engine):
        for count, credit in (("few", Oracle(branches=1)), ("many", Oracle(branches=32))):
            trainer.credit = credit
            worth = estimate_of(trainer, None)(batch, engine)
            seen[count] = worth[batch.completions.mask]
        exact = by_formula(get_task(name).truth_of("easy"))(batch, engine)
        seen["exact"] = exact[batch.completions.mask]
        return exact

    trainer.credit = Oracle(estimate=both)
    trainer.train()
    exact, many = seen["exact"], seen["many"]
    assert float(exact @ many / (exact @ exact)) == pytest.approx(1.0, abs=0.1)
    error, scale = (many - exact).square().mean().sqrt(), exact.square().mean().sqrt()
    assert error < within * scale < (seen["few"] - exact).square().mean().sqrt()


@pytest.mark.parametrize("engine", [{}, {"max_tool_calling_iterations": 2}, {"max_completion_length": 51}])
def test_agents_continue_as_in_trls_loop(engine, trainer_of) -> None:
    """From the prompt and from the middle of what was written, greedily: the rewards of TRL's own loop."""
    trainer = trainer_of("errands", **engine)
    rows = get_task("errands").rows("easy", num=12, first_seed=0)
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


def test_padding_and_neighbours_change_nothing(trainer_of) -> None:
    """Nor does what the model's own file says of sampling; a completion that is full is judged as it is."""
    trainer = trainer_of("codebook", max_completion_length=10)
    task, tokenizer = get_task("codebook"), trainer.processing_class
    rows = [row for tier in ("easy", "default", "k8") for row in task.rows(tier, num=2, first_seed=0)]
    begun = begun_of(trainer, rows, [tokenizer(text)["input_ids"] for text in ["codes", "codes Mo", ""] * 2])
    assert len({len(one.prompt) for one in begun}) == 3
    noise = SharedNoise(vocabulary=trainer.model.config.vocab_size, seed=(0,))
    play_on = Continuations(trainer)
    together = play_on(begun, noise)
    trainer.model.generation_config.repetition_penalty = 5.0
    assert [play_on([one], noise)[0] for one in begun] == together
    right = tokenizer(f"codes {rows[0]['answer']}{EOS}")["input_ids"]
    assert play_on(begun_of(trainer, rows[:1], [right]), noise) == [1.0]
