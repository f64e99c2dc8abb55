"""True advantages by branching rollouts, against a task's formula and TRL's loop."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from gear_rl.arena.model import EOS
from gear_rl.arena.task import get_task
from gear_rl.lab.branching import Begun, Continuations, SharedNoise
from gear_rl.lab.comparison import plan_of
from gear_rl.lab.oracle import Oracle, by_formula, estimate_of
from gear_rl.lab.training import cell_trainer
from gear_rl.runs.machine import quiet_libraries
from gear_rl.tensor.lists import int_list
from support.commands import untouched


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


def test_advantages_add_up_to_what_the_completion_has_over_its_prompt(trainer_of) -> None:
    """Also of a model with dropout: it branches off as what it is when it samples."""
    trainer = trainer_of("codebook")
    for layer in trainer.model.model.layers:
        layer.self_attn.attention_dropout = 0.5
    own: list[tuple[float, float]] = []

    def estimate(batch, engine):
        worth = estimate_of(trainer, None)(batch, engine)
        noise = SharedNoise(vocabulary=trainer.model.config.vocab_size, seed=(trainer.args.seed, batch.step))
        prompts = [
            int_list(ids[kept])
            for ids, kept in zip(batch.student.ids_BP, batch.student.attention_BP.bool(), strict=True)
        ]
        begun = [
            Begun(prompt=tuple(prompt), written=(), branch=2 * group + m, row=row)
            for prompt, group, row in zip(prompts, batch.group, batch.rows, strict=True)
            for m in range(2)
        ]
        first = torch.tensor(Continuations(trainer)(begun, noise)).view(-1, 2).mean(-1)
        own.extend(zip(worth.sum(-1).tolist(), (torch.tensor(batch.rewards) - first).tolist(), strict=True))
        return worth

    trainer.credit = Oracle(branches=2, estimate=estimate)
    trainer.train()
    assert [total for total, _ in own] == pytest.approx([over for _, over in own], abs=1e-5)
    assert len({over for _, over in own}) > 2


@pytest.mark.parametrize("engine", [{}, {"max_completion_length": 11}])
def test_rollouts_continue_as_in_trls_loop(engine, trainer_of) -> None:
    """From the prompt and from the middle of what was written, greedily: the rewards of TRL's own loop."""
    trainer = trainer_of("codebook", **engine)
    rows = get_task("codebook").rows("easy", num=12, first_seed=0)
    theirs = trainer.solve(rows, greedy=True)
    under_way = trainer.rollouts
    play_on = Continuations(trainer)
    for share in (0.0, 0.3, 0.6, 1.0):
        begun = begun_of(trainer, rows, [own[: int(share * len(own))] for own in under_way.ids])
        assert play_on(begun, greedy_of(trainer)) == pytest.approx(theirs), share
    assert 0.0 < sum(theirs) < len(rows), "some succeed and some do not"
    assert trainer.rollouts is under_way, "the batch under way is as it was"
    assert trainer.solve(rows, greedy=True) == theirs, "TRL generates again"


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
