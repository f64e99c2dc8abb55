"""Which steps a completion has, and what a reward function or a process reward model says of them."""

import dataclasses
import math

import pytest
import torch
from transformers import Qwen3ForTokenClassification

from engines import tiny
from gear_rl.credit.config import CreditConfig
from gear_rl.credit.step import step
from gear_rl.methods import StepScores
from gear_rl.signals.batch import ForwardRequest, left_padded
from gear_rl.signals.steps import PrmScore, StepId, StepScore, reward_model
from support.batches import PlainEngine, batch_of


@pytest.fixture(scope="module")
def engine():
    fast = tiny.tokenizer()
    return PlainEngine(fast, tiny.model(len(fast)))


def written(engine, *texts, **changes):
    """Rollouts with these completions, each as long as its text; ``|`` is an end of turn, which is no text."""
    rows = [engine.tokenizer(text.replace("|", "<|im_end|>"))["input_ids"] for text in texts]
    width = max(map(len, rows))
    ids = torch.tensor([row + [0] * (width - len(row)) for row in rows])
    mask = torch.tensor([[t < len(row) for t in range(width)] for row in rows])
    return batch_of(ids, mask, messages=[*texts], **changes)


def pieces(engine, batch, values, b=0):
    """The texts of the runs of equal values, with the value."""
    found = []
    ids, mask = batch.completions.ids[b], batch.completions.mask[b]
    for token, value in zip(ids[mask], values[b][mask].tolist(), strict=True):
        text = engine.tokenizer.decode([token])
        if found and found[-1][1] == value:
            found[-1] = (found[-1][0] + text, value)
        else:
            found.append((text, value))
    return found


def test_steps_end_with_the_separator_and_with_the_turn(engine):
    batch = written(engine, "so\n\n\n\nthen\n\n", "a ; b ;c")
    by_blank_line = StepId("separator").compute(batch, engine)
    assert pieces(engine, batch, by_blank_line) == [("so\n\n\n\n", 0), ("then\n\n", 1)]
    by_mark = StepId("separator", " ;").compute(batch, engine)
    assert pieces(engine, batch, by_mark, 1) == [("a ;", 0), (" b ;", 1), ("c", 2)]
    every = StepId("tokens").compute(batch, engine)
    assert every[1][batch.completions.mask[1]].tolist() == [*range(int(batch.completions.mask[1].sum()))]
    assert StepId("turns").compute(batch, engine)[1].max() == 0


def test_scores_of_steps_tokens_and_spans(engine):
    batch = written(engine, "12 ; 3 ;4", step_scores=[[0.5, -1, 2]])
    score = StepScore("separator", " ;").compute(batch, engine)
    assert pieces(engine, batch, score) == [("12 ;", 0.5), (" 3 ;", -1), ("4", 2)]
    count = int(batch.completions.mask.sum())
    batch = written(engine, "12 ; 3 ;4", step_scores=[[*range(count)]])
    assert StepScore("tokens").compute(batch, engine)[0].tolist() == [*range(count)]
    # Characters of what a reward function sees: the special token has none, and e with an accent is two tokens.
    batch = written(engine, "|é1 234", step_scores=[[[4, 6, 0.25], [1, 2, 1.0]]])
    score, steps = (signal("spans").compute(batch, engine) for signal in (StepScore, StepId))
    assert [one for one in pieces(engine, batch, score) if one[1]] == [("1", 1.0), ("34", 0.25)]
    assert steps.unique().tolist() == [-1, 0, 1] and steps.max(-1).values.tolist() == [1]


def test_what_does_not_fit_is_nan_and_named(engine, caplog):
    batch = written(engine, "1 ;2", "1 ;2", "1 ;2", step_scores=[[1.0, 0.0], [1.0], None])
    score = StepScore("separator", " ;").compute(batch, engine)
    assert score[0].isfinite().all() and score[1:].isnan().all()
    assert "rollout 1 has 2 steps (separator), but 1 scores were logged" in caplog.text
    with pytest.raises(
        ValueError, match='step_scores: no reward function logged "step_scores"; call log_extra'
    ):
        StepScore("tokens").compute(written(engine, "1"), engine)
    for odd in ([[3, 1, 0.5]], [1.0], [["a", 1, 0.5]]):
        with pytest.raises(
            ValueError, match=r"step_scores: .*; with steps=spans give each span as \[begin, end"
        ):
            StepScore("spans").compute(written(engine, "1", step_scores=[odd]), engine)


def test_a_rollout_without_scores_keeps_its_advantage(engine):
    batch = written(engine, "1 ;2", "1 ;2", "1 ;2", step_scores=[[1.0, 0.0], [0.0, 0.0], None])
    method = StepScores(steps="separator", separator=" ;")
    result = step(batch, method, engine, CreditConfig().resolved(method))
    own = batch.advantage_B[:, None]
    assert (result.credit.advantage[2] == own[2]).all() and (result.credit.advantage[0] != own[0]).any()
    assert engine.logged["gear/fallback/non_finite"] == 1


@pytest.fixture(scope="module")
def prm(engine, tmp_path_factory):
    """A classifier of random weights over the same vocabulary."""
    folder = str(tmp_path_factory.mktemp("prm"))
    config = tiny.model(len(engine.tokenizer)).config
    config.num_labels = 2
    torch.manual_seed(3)
    Qwen3ForTokenClassification(config).save_pretrained(folder)
    return folder


def test_a_reward_model_is_read_at_the_ends_of_steps(engine, prm):
    """Against each rollout alone, prompt and completion in one row without padding."""
    texts, shown = ["12 ; 3 ;4", "1 ;2", "7"], [[5, 6, 7, 8], [9], [10, 11]]
    batch = written(engine, *texts)
    prompts = left_padded(shown, pad_id=0)
    signal = PrmScore(prm, "separator", " ;")
    steps = signal.reads[0].compute(batch, engine)
    plan_of = {
        "needs": [signal],
        "step": 0,
        "completions": batch.completions,
        "student": prompts,
        "teachers": [],
    }
    request = ForwardRequest(
        **plan_of, scored_B=torch.tensor([True, True, False]), inputs={"step_id": steps.clamp(min=0)}
    )
    found = engine.forward(request)["step_score"]
    model = reward_model(prm, "cpu")
    for b in range(2):
        own = batch.completions.ids[b][batch.completions.mask[b]]
        logits = model(input_ids=torch.cat([torch.tensor(shown[b]), own])[None]).logits[0, len(shown[b]) :]
        right = logits.softmax(-1)[:, 1]
        number = steps[b][batch.completions.mask[b]]
        last = torch.tensor([int((number == k).nonzero().max()) for k in number])
        torch.testing.assert_close(found[b][batch.completions.mask[b]], right[last])
        assert len(right[last].unique()) == int(number.max()) + 1
    assert (found[2] == 0).all()
    none = dataclasses.replace(request, scored_B=torch.zeros(3, dtype=torch.bool))
    assert not engine.forward(none)["step_score"].any(), "weights of a batch of equal rewards"


def test_a_model_that_is_no_classifier_is_refused(engine, prm, tmp_path):
    tiny.save(tmp_path)
    policy = str(tmp_path), "a Qwen3ForCausalLM, which has no score"
    for name, message in (policy, ("/none", "cannot be loaded")):
        with pytest.raises(ValueError, match=f"prm: .*{message}"):
            reward_model(name, "cpu")
    assert math.isfinite(sum(float(p.sum()) for p in reward_model(prm, "cpu").parameters()))
    assert not any(p.requires_grad for p in reward_model(prm, "cpu").parameters())
