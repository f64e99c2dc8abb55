"""The ceiling by formula: true advantages by hand, and in a real run; against rollouts: test_branching.py."""

from dataclasses import replace
from statistics import fmean

import pytest
import torch

from gear_rl.arena.codebook.truth import truth
from gear_rl.arena.task import get_task
from gear_rl.arena.truth import Truth
from gear_rl.lab.compare import plan_of
from gear_rl.lab.oracle import Oracle, expected_of_prompts, true_advantages
from gear_rl.lab.training import cell_trainer
from gear_rl.runs.machine import quiet_libraries
from gear_rl.types import TokenSignals
from support.commands import untouched

THREE = {
    "decision": (-1, 0, -1, 1, -1),
    "right": (True, True, False, False, False),
    "right_id": (5, 6, 7, 8, 9),
    "lost": ((0,), (), (1, 2), (), (2,)),
    "num_decisions": 3,
}
CHANCE, EXPECTED = [0.75, 0.5, 0.5, 0.25, 0.5], [0.9, 0.9, 0.125]


def test_a_graded_reward_by_hand() -> None:
    """Form in 0, a right decision in 1, lost form in 2 (that decision 1 came all the same), a wrong one in 3, and
    decision 2 lost for good in 4."""
    worth = true_advantages(Truth(exact=False, **THREE), CHANCE, EXPECTED)
    want = [0.25 * 0.5, 0.5, -0.5 * (0.25 + 0.125), -0.25, -0.5 * 0.125]
    assert worth == pytest.approx([value / 3 for value in want])


def test_an_exact_reward_by_hand() -> None:
    """Worth something as long as nothing is wrong, times the chance that all that is left comes right."""
    worth = true_advantages(Truth(exact=True, **THREE), CHANCE, EXPECTED)
    rest = 0.25 * 0.125
    assert worth == pytest.approx([0.25 * 0.5 * rest, 0.5 * rest, -0.5 * rest, -0.25 * 0.125, 0.0])


def test_what_was_lost_is_known_from_siblings() -> None:
    shown = Truth(exact=False, **THREE)
    other = Truth(decision=(2,), right=(True,), right_id=(7,), lost=((),), num_decisions=3, exact=False)
    expected = expected_of_prompts([shown, other], [CHANCE, [0.75]], [0, 0])
    assert expected == [[0.5, 0.25, 0.75]] * 2
    apart = expected_of_prompts([shown, other], [CHANCE, [0.75]], [0, 1])
    assert apart[0] == [0.5, 0.25, 0.5], "nobody came there: the mean of all"


def test_every_token_gets_its_own_and_the_advantage_is_not_read() -> None:
    mask = torch.tensor([[True, True, False]])
    signals = TokenSignals(mask=mask, true_advantage=torch.tensor([[0.5, -0.25, 9.0]]))
    for advantage in (0.0, -3.0):
        credit = Oracle()(torch.tensor([advantage]), signals)
        assert credit.advantage.tolist() == [[0.5, -0.25, 0.0]]
        assert credit.segment_id.tolist() == [[0, 1, -1]]


@pytest.fixture(scope="module")
def trainer(tmp_path_factory):
    plan = plan_of([], task="codebook", tier="easy", seeds=1, steps=1, n_eval=8, rates=1)
    _, spec = plan.reported()
    with untouched(None):
        quiet_libraries()
        yield cell_trainer(spec, str(tmp_path_factory.mktemp("oracle")))


def test_who_takes_every_decision_rightly_is_paid_and_hardly_anybody_else(tmp_path) -> None:
    """The truth reads rollouts as the trainer joins them."""
    plan = plan_of([], task="chain", tier="easy", seeds=1, steps=1, rollouts=32, n_eval=8, rates=1)
    _, spec = plan.reported()
    paid: list[tuple[bool, float]] = []
    with untouched(None):
        quiet_libraries()
        trainer = cell_trainer(spec, str(tmp_path))
        told, truth_of = trainer.credit.tell, get_task("chain").truth_of("easy")

        def kept(batch, engine):
            for ids, row, reward in zip(batch.completions.ids, batch.rows, batch.rewards, strict=True):
                facts = truth_of(ids.tolist(), row, engine.tokenizer)
                paid.append((sum(facts.right) == facts.num_decisions, reward))
            return told(batch, engine)

        trainer.credit = replace(trainer.credit, tell=kept)
        trainer.train()
    right = [reward for all_right, reward in paid if all_right]
    lucky = [reward for all_right, reward in paid if not all_right]
    assert len(paid) == 32 and len(right) > 5 and set(right) == {1.0}
    assert sum(lucky) < len(right) / 2 and 0.0 in lucky


def test_a_run_is_told_the_truth_of_its_own_rollouts(trainer) -> None:
    assert trainer.credit.tell is not None and trainer.credit.name == "oracle"
    seen: list[torch.Tensor] = []
    told = trainer.credit.tell

    def kept(batch, engine):
        seen.append(told(batch, engine))
        codes = [[piece >= 0 for piece in truth(ids.tolist(), row, engine.tokenizer).decision]
                 for ids, row in zip(batch.completions.ids, batch.rows, strict=True)]  # fmt: skip
        decided = torch.tensor(codes)
        right = seen[-1][decided] > 0
        # Every completion is paid by what it has right; a decision in doubt is worth something either way.
        assert fmean(batch.rewards) == pytest.approx(
            float(right.float().sum()) / (4 * len(batch.rewards)), abs=0.1
        )
        return seen[-1]

    trainer.credit = replace(trainer.credit, tell=kept)
    trainer.train()
    assert len(seen) == 1 and seen[0].shape[0] == 16 and seen[0].abs().max() > 0.05
