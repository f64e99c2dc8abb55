"""The ceiling: true advantages by hand, against branching rollouts, and in a real run."""

from statistics import fmean

import pytest
import torch

from gear_rl.arena.chain.problem import chain_reward
from gear_rl.arena.codebook.problem import codebook_reward
from gear_rl.arena.codebook.truth import truth
from gear_rl.arena.evaluate import prompt_text
from gear_rl.arena.model import load
from gear_rl.arena.task import get_task
from gear_rl.arena.truth import Truth
from gear_rl.experiments.cells import cell_trainer, run_cell
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


def test_it_agrees_with_branching_rollouts(trainer) -> None:
    """The slow twin: the mean reward of many continuations after a token, less that before it."""
    model, tokenizer = load(task="codebook")
    task = get_task("codebook")
    [row] = task.rows("easy", num=1, first_seed=0)
    prompt = tokenizer(prompt_text(tokenizer, row))["input_ids"]
    completion = tokenizer("codes Mo 64 Fa 99 Fa 83 Ni 80<|im_end|>")["input_ids"]
    facts = truth(completion, row, tokenizer)
    logits = model(torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1].float()
    asked = [right if right >= 0 else own for right, own in zip(facts.right_id, completion, strict=True)]
    chance = logits.detach().softmax(-1)[range(len(completion)), asked].tolist()
    expected = expected_of_prompts([facts], [chance], [0])[0]
    worth = true_advantages(facts, chance, expected)

    def value(length: int, draws: int = 512) -> float:
        prefix = torch.tensor([prompt + completion[:length]] * draws)
        with torch.no_grad():
            ids = model.generate(
                prefix, max_new_tokens=16, do_sample=True, top_k=0, pad_token_id=tokenizer.pad_token_id
            )
        texts = [text.split("<|im_end|>")[0] for text in tokenizer.batch_decode(ids[:, len(prompt) :])]
        return fmean(codebook_reward(texts, answer=[row["answer"]] * draws))

    with torch.random.fork_rng():
        torch.manual_seed(0)
        for token in (
            2,
            4,
        ):  # a right code, a wrong one: each reward is a share of four, so 512 draws say it to 0.02
            assert worth[token] == pytest.approx(value(token + 1) - value(token), abs=0.05)
        assert worth[2] > 0.02 and worth[4] < -0.02


def test_a_chain_agrees_with_branching_rollouts() -> None:
    """One right completion is paid, so what a token is worth is the chance of all that is still to come."""
    model, tokenizer = load(task="chain")
    task = get_task("chain")
    [row] = task.rows("default", num=1, first_seed=0)
    assert row["prompt"][-1]["content"] == "18 -9 -6 +3"
    prompt = tokenizer(prompt_text(tokenizer, row))["input_ids"]
    right = tokenizer(row["privileged_context"] + "<|im_end|>")["input_ids"]
    wrong = tokenizer("18 -9 = 12 ; 12 -6 = 06 ; 06 +3 = 09 ; ans 09<|im_end|>")["input_ids"]
    truth_of = task.truth_of("default")
    assert truth_of is not None
    facts = [truth_of(ids, row, tokenizer) for ids in (right, wrong)]

    def chances(ids: list[int], asked: list[int]) -> list[float]:
        logits = model(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1].float().detach()
        return logits.softmax(-1)[range(len(ids)), asked].tolist()

    asked = [[*right], [r if r >= 0 else i for r, i in zip(facts[1].right_id, wrong, strict=True)]]
    chance = [chances(ids, one) for ids, one in zip((right, wrong), asked, strict=True)]
    expected = expected_of_prompts(facts, chance, [0, 0])
    worth = [true_advantages(*of) for of in zip(facts, chance, expected, strict=True)]

    def value(prefix: list[int], draws: int = 512) -> float:
        with torch.no_grad():
            ids = model.generate(
                torch.tensor([prompt + prefix] * draws), max_new_tokens=16, do_sample=True, top_k=0,
                pad_token_id=tokenizer.pad_token_id,
            )  # fmt: skip
        texts = [text.split("<|im_end|>")[0] for text in tokenizer.batch_decode(ids[:, len(prompt) :])]
        return fmean(chain_reward(texts, answer=[row["answer"]] * draws))

    with torch.random.fork_rng():
        torch.manual_seed(0)
        for ids, values, t in ((right, worth[0], 6), (wrong, worth[1], 2), (wrong, worth[1], 6)):
            gained = value(ids[: t + 1]) - value(ids[:t])
            assert values[t] == pytest.approx(gained, abs=0.09), (t, tokenizer.decode(ids[: t + 1]))
        assert worth[0][6] > 0.1 and worth[1][2] < -0.1 and worth[1][6] == 0.0


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


def test_without_the_truth_it_is_refused(tmp_path) -> None:
    plan = plan_of([], task="codebook", tier="easy", seeds=1, steps=1, n_eval=8, rates=1)
    _, spec = plan.reported(plan.own_rates)
    with untouched(None), pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(get_task("codebook")), "truth_of", lambda task, tier: None)
        row = run_cell(spec, tmp_path)
    assert "true_advantage" in row["error"] and "gear compare" in row["error"]
