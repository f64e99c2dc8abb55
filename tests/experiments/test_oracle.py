"""The ceiling: true advantages by hand, against branching rollouts, and in a real run."""

from statistics import fmean

import pytest
import torch

from gear_rl.arena.codebook.truth import truth
from gear_rl.arena.evaluate import prompt_text
from gear_rl.arena.model import EOS, load
from gear_rl.arena.task import get_task
from gear_rl.arena.truth import Truth
from gear_rl.experiments.cells import cell_trainer
from gear_rl.experiments.compare import plan_of
from gear_rl.experiments.oracle import Oracle, expected_of_prompts, true_advantages
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
    _, spec = plan.reported(plan.own_rates)
    with untouched(None):
        quiet_libraries()
        yield cell_trainer(spec, str(tmp_path_factory.mktemp("oracle")))


class Branching:
    """A task's formula, and its slow twin: the mean reward of many continuations."""

    def __init__(self, name: str, tier: str) -> None:
        self.task = get_task(name)
        self.model, self.tokenizer = load(task=name)
        [self.row] = self.task.rows(tier, num=1, first_seed=0)
        self.truth_of = self.task.truth_of(tier)
        self.prompt = self.tokenizer(prompt_text(self.tokenizer, self.row))["input_ids"]

    def ids(self, completion: str) -> list[int]:
        return self.tokenizer(completion + EOS)["input_ids"]

    def worth(self, completions: list[list[int]]) -> list[list[float]]:
        """By the formula, with the policy's own probabilities; the completions are siblings."""
        facts = [self.truth_of(ids, self.row, self.tokenizer) for ids in completions]
        chances = [self._chances(ids, one) for ids, one in zip(completions, facts, strict=True)]
        expected = expected_of_prompts(facts, chances, [0] * len(facts))
        return [true_advantages(*of) for of in zip(facts, chances, expected, strict=True)]

    def gained(self, ids: list[int], t: int) -> float:
        """What token ``t`` brings: the value after it, less that before it."""
        return self._value(ids[: t + 1]) - self._value(ids[:t])

    def _chances(self, ids: list[int], facts: Truth) -> list[float]:
        logits = self.model(torch.tensor([self.prompt + ids])).logits[0, len(self.prompt) - 1 : -1].float()
        asked = [right if right >= 0 else own for right, own in zip(facts.right_id, ids, strict=True)]
        return logits.detach().softmax(-1)[range(len(ids)), asked].tolist()

    def _value(self, prefix: list[int], draws: int = 512) -> float:
        begin = torch.tensor([self.prompt + prefix] * draws)
        pad = self.tokenizer.pad_token_id
        with torch.no_grad():
            ids = self.model.generate(begin, max_new_tokens=16, do_sample=True, top_k=0, pad_token_id=pad)
        texts = [text.split(EOS)[0] for text in self.tokenizer.batch_decode(ids[:, len(self.prompt) :])]
        return fmean(self.task.reward(texts, answer=[self.row["answer"]] * draws))


def test_it_agrees_with_branching_rollouts() -> None:
    of = Branching("codebook", "easy")
    completion = of.ids("codes Mo 64 Fa 99 Fa 83 Ni 80")
    [worth] = of.worth([completion])
    with torch.random.fork_rng():
        torch.manual_seed(0)
        # A right code, a wrong one: each reward is a share of four, so 512 draws say it to 0.02.
        for t in (2, 4):
            assert worth[t] == pytest.approx(of.gained(completion, t), abs=0.05)
    assert worth[2] > 0.02 and worth[4] < -0.02


def test_a_chain_agrees_with_branching_rollouts() -> None:
    """One right completion is paid, so what a token is worth is the chance of all that is still to come."""
    of = Branching("chain", "default")
    right = of.ids("18 -9 = 09 ; 09 -6 = 03 ; 03 +3 = 06 ; ans 06")
    wrong = of.ids("18 -9 = 12 ; 12 -6 = 06 ; 06 +3 = 09 ; ans 09")
    of_right, of_wrong = of.worth([right, wrong])
    with torch.random.fork_rng():
        torch.manual_seed(0)
        # Rewards of 0 and 1: the difference of two means of 512 has a deviation of 0.03.
        for ids, worth, t in ((right, of_right, 6), (wrong, of_wrong, 2), (wrong, of_wrong, 6)):
            assert worth[t] == pytest.approx(of.gained(ids, t), abs=0.09), (t, ids)
    assert of_right[6] > 0.1 and of_wrong[2] < -0.1 and of_wrong[6] == 0.0


def test_who_takes_every_decision_rightly_is_paid_and_hardly_anybody_else(tmp_path) -> None:
    """The truth reads rollouts as the trainer joins them."""
    plan = plan_of([], task="chain", tier="easy", seeds=1, steps=1, rollouts=32, n_eval=8, rates=1)
    _, spec = plan.reported(plan.own_rates)
    paid: list[tuple[bool, float]] = []
    with untouched(None):
        quiet_libraries()
        trainer = cell_trainer(spec, str(tmp_path))
        told, truth_of = trainer.truth, get_task("chain").truth_of("easy")

        def kept(batch, engine):
            for ids, row, reward in zip(batch.completions.ids, batch.rows, batch.rewards, strict=True):
                facts = truth_of(ids.tolist(), row, engine.tokenizer)
                paid.append((sum(facts.right) == facts.num_decisions, reward))
            return told(batch, engine)

        trainer.truth = kept
        trainer.train()
    right = [reward for all_right, reward in paid if all_right]
    lucky = [reward for all_right, reward in paid if not all_right]
    assert len(paid) == 32 and len(right) > 5 and set(right) == {1.0}
    assert sum(lucky) < len(right) / 2 and 0.0 in lucky


def test_a_run_is_told_the_truth_of_its_own_rollouts(trainer) -> None:
    assert trainer.truth is not None and trainer.credit.name == "oracle"
    seen: list[torch.Tensor] = []
    told = trainer.truth

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

    trainer.truth = kept
    trainer.train()
    assert len(seen) == 1 and seen[0].shape[0] == 16 and seen[0].abs().max() > 0.05
