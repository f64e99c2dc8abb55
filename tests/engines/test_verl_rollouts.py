"""verl's columns as a batch of rollouts, and the credit step on it."""

import pytest
import torch

from gear_rl.credit.credit_config import CreditConfig
from gear_rl.credit.step import for_loss, step
from gear_rl.engine import messages_of
from gear_rl.engines.verl.rollouts import SAMPLED, SEEN, rollout_batch
from gear_rl.methods import METHODS
from support.batches import Letters, PlacesEngine


def batch_of(grouped=True, **changes):
    """Two prompts, whose keys have an underscore, with two rollouts each; the second of each prompt is right."""
    lengths = [2, 3, 1, 2]
    given = {
        "prompts": [torch.tensor([1, 2])] * 4,
        "responses": [torch.tensor([3, 4, 9][-n:]) for n in lengths],
        "response_mask": [torch.ones(n).long() for n in lengths],
        "advantages": [torch.full((n,), a) for n, a in zip(lengths, (-1.0, 1.0, -1.0, 1.0), strict=True)],
        "rm_scores": [
            torch.tensor([0.0] * (n - 1) + [r]) for n, r in zip(lengths, (0, 1, 0, 1), strict=True)
        ],
        "raw_prompt": [[{"role": "user", "content": "ab"}]] * 4,
        "reward_model": [{"ground_truth": "4"}] * 4,
        "extra_info": [{"answer": "so 4"}] * 4,
        "data_source": ["sums"] * 4,
        "extra_fields": [{}] * 4,
        SAMPLED: [torch.ones(n).long() for n in lengths],
    }
    keys = ["a_b_0_0", "a_b_1_0", "a_c_0_0", "a_c_1_0"]
    return rollout_batch({**given, **changes}, keys, 3, Letters(), grouped=grouped)


def test_rollouts_of_one_prompt_are_a_group():
    batch = batch_of()
    assert batch.group == [0, 0, 1, 1] and batch.step == 3
    assert batch.advantage_B.tolist() == [-1.0, 1.0, -1.0, 1.0]
    assert batch.rewards == [0.0, 1.0, 0.0, 1.0] and batch.rewards_BR.shape == (4, 1)
    assert batch.completions.mask.sum(-1).tolist() == [2, 3, 1, 2]
    assert batch.rows[0] == {"answer": "so 4", "ground_truth": "4", "data_source": "sums"}
    assert batch.environments is None and batch.tools is None and not batch.logged
    own = batch_of(extra_info=[{"ground_truth": "own"}] * 4)
    assert own.rows[0]["ground_truth"] == "own", "the row of the dataset wins"


def test_a_completion_has_one_advantage_that_of_its_trained_tokens():
    ones = [torch.ones(n) for n in (2, 3, 1, 2)]
    uneven = [ones[0], torch.tensor([1.0, 0.5, 1.0]), *ones[2:]]
    with pytest.raises(ValueError, match=r"algorithm\.adv_estimator: .* from 0\.5 to 1,"):
        batch_of(advantages=uneven)
    trained = [torch.zeros(2).long(), torch.tensor([1, 0, 1]), *(row.long() for row in ones[2:])]
    batch = batch_of(advantages=[torch.zeros(2), *uneven[1:]], response_mask=trained)
    assert batch.advantage_B.tolist() == [0.0, 1.0, 1.0, 1.0]


def test_the_rounding_of_equal_rewards_is_no_advantage():
    lengths, rounding = [2, 3, 1, 2], [0.1, 0.1, -1.0, 1.0]
    given = {
        "rm_scores": [
            torch.tensor([0.0] * (n - 1) + [r]) for n, r in zip(lengths, (0.3, 0.3, 0, 1), strict=True)
        ],
        "advantages": [torch.full((n,), a) for n, a in zip(lengths, rounding, strict=True)],
    }
    assert batch_of(**given).advantage_B.tolist() == [0.0, 0.0, -1.0, 1.0]
    assert batch_of(grouped=False, **given).advantage_B.tolist() == pytest.approx(rounding)


WHOLE = [1, 1, 1, 0, 1, 1]


def credited(name, second):
    """Four rollouts of two turns; ``second`` are the trained tokens of the second: its credit and records."""
    trained = [WHOLE, second, WHOLE, WHOLE]
    batch = batch_of(
        responses=[torch.tensor([3, 4, 5, 6, 7, 9])] * 4,
        response_mask=[torch.tensor(row) for row in trained],
        advantages=[torch.tensor(row) * a for row, a in zip(trained, (-1.0, 1.0, -1.0, 1.0), strict=True)],
        rm_scores=[torch.tensor([0.0] * 5 + [r]) for r in (0.0, 1.0, 0.0, 1.0)],
        extra_fields=[{"reward_extra_info": {"turn_rewards": [b % 2, 1 - b % 2]}} for b in range(4)],
        **{SAMPLED: [torch.tensor(WHOLE)] * 4},
    )
    method, engine = METHODS[name](), PlacesEngine(Letters())
    config = CreditConfig(teacher_model_kind="live").resolved(method)
    return batch, step(batch, method, engine, config), engine.records


@pytest.mark.parametrize("name", ["uniform", "gear", "serl", "gigpo", "mt_grpo"])
def test_a_token_that_verl_rejects_is_inside_its_turn_and_changes_no_other(name):
    before, expected, _ = credited(name, WHOLE)
    batch, result, records = credited(name, [1, 0, 1, 0, 1, 1])
    expected.credit.advantage[1, 1] = 0.0
    assert torch.equal(result.credit.advantage, expected.credit.advantage)
    assert result.signals.turn_id[1].tolist() == [0, 0, 0, -1, 1, 1]
    assert batch.messages == before.messages and len(batch.messages[1]) == 3
    assert records[1].turn[1] == 0 and records[1].credit[1] == 0.0
    plain = torch.where(batch.completions.trained, batch.advantage_B[:, None], 0.0)
    assert name != "uniform" or torch.equal(result.credit.advantage, plain)
    assert (for_loss(batch, result.credit).dim() == 1) == (name == "uniform")


@pytest.mark.parametrize("name", ["uniform", "gear", "serl", "gigpo", "mt_grpo"])
def test_a_completion_that_verl_rejects_is_not_scored_and_has_no_credit(name):
    batch, result, _ = credited(name, [0] * 6)
    assert not result.credit.advantage[1].any()
    assert not result.scored_B[1] and result.fallback_B["no_token"][1]
    assert result.credit.advantage[[0, 2, 3]].any(-1).all() and result.credit.advantage.isfinite().all()
    assert [message["role"] for message in batch.messages[1]] == ["assistant", "tool", "assistant"]


def test_what_a_reward_function_or_an_agent_loop_returned_is_read():
    given = {"turn_rewards": [0.5], "step_scores": "[[0, 2, 0.25]]"}  # as JSON, or verl averages it
    extra = [{"reward_extra_info": {"feedback": f"row {b}", **given}} for b in range(4)]
    batch = batch_of(extra_fields=extra)
    logged = {"turn_rewards": [[0.5]] * 4, "step_scores": [[[0, 2, 0.25]]] * 4}
    assert batch.logged == {"feedback": ["row 0", "row 1", "row 2", "row 3"]} | logged
    failed = {"role": "tool", "name": "pay", "content": "no", "failure": "raised"}
    seen = {
        "prompt": [{"role": "user", "content": "ab, you have 3"}],
        "messages": [{"role": "assistant", "tool_calls": [{}]}, failed],
        "tool_counts": {"calls": 1, "raised": 1},
        "privileged_context": "pay 3",
    }
    batch = batch_of(extra_fields=[{SEEN: seen}] * 4)
    assert batch.prompts[0] == seen["prompt"] and batch.messages[0] == seen["messages"]
    assert batch.tools.counts == [{"calls": 1, "raised": 1}] * 4
    assert batch.environments[0].privileged_context() == "pay 3"
    assert (
        batch.failure_of(0, failed) == "raised" and batch.failure_of(0, {**failed, "failure": None}) is None
    )


def test_a_completion_becomes_messages_by_its_mask():
    ids, mask = torch.tensor([1, 2, 3, 4, 0]), torch.tensor([True, True, False, True, False])
    attention = torch.tensor([1, 1, 1, 1, 0])
    roles = [(m["role"], m["content"]) for m in messages_of(ids, mask, attention, Letters())]
    assert roles == [("assistant", "ab"), ("tool", "c"), ("assistant", "d")]
