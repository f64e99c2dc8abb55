"""Which steps a completion has, and what a reward function or a process reward model says of them."""

import dataclasses
import math
import shutil

import pytest
import torch
from tokenizers import Tokenizer, models
from transformers import (
    LlamaConfig,
    LlamaForTokenClassification,
    PreTrainedTokenizerFast,
    Qwen3ForTokenClassification,
)

from engines import tiny
from gear_rl.credit.credit_config import CreditConfig
from gear_rl.credit.step import step
from gear_rl.engine import token_places
from gear_rl.engines.models import check_reward_model
from gear_rl.methods import StepScores
from gear_rl.rollouts import left_padded
from gear_rl.signals.steps import PrmScore, StepId, StepScore, reward_model
from gear_rl.signals.turns import TurnReward
from support import batches
from support.batches import PlainEngine
from support.scoring import request_of


@pytest.fixture(scope="module")
def engine():
    fast = tiny.tokenizer()
    return PlainEngine(fast, tiny.model(len(fast)))


def written(engine, *texts, **logged):
    """Rollouts with these completions; ``|`` is an end of turn, which is no text."""
    texts = [text.replace("|", "<|im_end|>") for text in texts]
    return batches.written(engine.tokenizer, texts, logged=logged)


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


@pytest.mark.parametrize("separator", ["\n\n", "\\n", " ;", ";", "😀", "\n-"])
@pytest.mark.parametrize("end", ["", "|"])
def test_there_are_as_many_steps_as_pieces_with_text(engine, separator, end):
    """As a reward function counts them, which sees neither special tokens nor what ends a turn."""
    mark = separator.replace("\\n", "\n")
    texts = [
        "one{0}\ntwo{0}\n",
        "{0}{0}",
        "one{0}two",
        "one{0}two{0}",
        "{0}one{0}{0}{0}two",
        "{0}{0} one {0}  {0}",
        "é{0}{0}ü{0}x y{0}z",
    ]
    texts = [text.format(mark) for text in texts]
    steps = StepId("separator", separator).compute(written(engine, *(text + end for text in texts)), engine)
    counts = [len([piece for piece in text.split(mark) if piece.strip()]) for text in texts]
    assert (steps.max(-1).values + 1).tolist() == counts == [2, 0, 2, 2, 2, 1, 4]


def test_a_turn_without_text_is_no_step(engine):
    batch = written(engine, "so;|;so")
    [answer] = engine.tokenizer(";")["input_ids"]  # a tool's
    own = dataclasses.replace(batch.completions, mask=batch.completions.ids != answer)
    steps = StepId("separator").compute(dataclasses.replace(batch, completions=own), engine)
    assert steps.tolist() == [[0, 0, -1, -1, -1, 1, 1]]


def test_tokens_of_one_character_share_it(engine):
    ids = engine.tokenizer("a答😀b")["input_ids"]
    text = [("a答😀b")[place.start : place.stop] for place in token_places(engine.tokenizer, ids)]
    assert text == ["a", *["答"] * 3, *["😀"] * 4, "b"]
    batch = written(engine, "a答😀b", step_scores=[[[1, 2, 0.5]]])
    assert pieces(engine, batch, StepScore("spans").compute(batch, engine))[1][1] == 0.5


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
    shared = [[k, k + 1, k / 10] for k in range(10)]  # more spans than tokens
    batch = written(engine, "答 34", step_scores=[shared])
    score, steps = (signal("spans").compute(batch, engine) for signal in (StepScore, StepId))
    assert steps.tolist() == [[0, 0, 0, 1, 2]], "the first that a token overlaps"
    assert score[0].tolist() == pytest.approx([0, 0, 0, 0.1, 0.3])
    batch = written(engine, "12 3", step_scores=[[0.25]])
    assert (StepScore("turns").compute(batch, engine)[0] == 0.25).all()
    fallen = TurnReward().compute(written(engine, "12 3"), engine)
    assert torch.equal(StepScore("turns").compute(written(engine, "12 3"), engine), fallen)


def test_what_does_not_fit_is_nan_and_named(engine, caplog):
    batch = written(engine, "1 ;2", "1 ;2", "1 ;2", step_scores=[[1.0, 0.0], [1.0], None])
    score = StepScore("separator", " ;").compute(batch, engine)
    assert score[0].isfinite().all() and score[1:].isnan().all()
    assert "rollout 1 has 2 steps (separator), but 1 scores were logged" in caplog.text
    with pytest.raises(
        ValueError, match='step_scores: no reward function logged "step_scores"; call log_extra'
    ):
        StepScore("tokens").compute(written(engine, "1"), engine)
    spans = written(engine, "1 2", "1 2", "1 2", "|", step_scores=[
        [[0, 1, 0.5], [9, 12, 1]], None, [[9, 12, 1]], [[0, 0, 1.0]]
    ])  # fmt: skip
    found = StepScore("spans").compute(spans, engine)
    assert found[0].isfinite().all() and found[1:3].isnan().all(), "none were logged, and all lie beyond"
    assert "rollout 2 has 0 steps (spans), but 1 scores were logged" in caplog.text
    assert StepScore("tokens").compute(written(engine, "1", step_scores=[[None]]), engine).isnan().all()
    for odd in (0.5, "12", [[1.0]], ["a"]):
        with pytest.raises(ValueError, match=r"step_scores: .* is no list of numbers; log one for each"):
            StepScore("tokens").compute(written(engine, "1", step_scores=[odd]), engine)
    for odd in ([[3, 1, 0.5]], [1.0], [["a", 1, 0.5]], [[0, math.inf, 1.0]]):
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
    engine.tokenizer.save_pretrained(folder)
    return folder


def test_a_reward_model_is_read_at_the_ends_of_steps(engine, prm):
    """Against each rollout alone, prompt and completion in one row without padding."""
    texts, shown = ["12 ; 3 ;4", "1 ;2", "7"], [[5, 6, 7, 8], [9], [10, 11]]
    batch = written(engine, *texts)
    prompts = left_padded(shown, pad_id=0)
    signal = PrmScore(prm, "separator", " ;")
    steps = signal.reads[0].compute(batch, engine)
    scored_B, inputs = torch.tensor([True, True, False]), {"step_id": steps.clamp(min=0)}
    request = request_of([signal], batch.completions, prompts, row_B=scored_B, inputs=inputs)
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
            check_reward_model(name, engine.tokenizer)
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    LlamaForTokenClassification(LlamaConfig(vocab_size=9, **sizes)).save_pretrained(tmp_path / "bare")
    with pytest.raises(
        ValueError,
        match=r"prm: '.*bare' has no tokenizer .*; check the name, and save the policy's beside it",
    ):
        check_reward_model(str(tmp_path / "bare"), engine.tokenizer)
    check_reward_model(prm, engine.tokenizer)
    other = shutil.copytree(prm, tmp_path / "other")
    PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"a": 0}, "a"))).save_pretrained(
        other
    )
    with pytest.raises(
        ValueError, match=r"prm: .* has another vocabulary than the model \(1 and \d+ tokens\)"
    ):
        check_reward_model(str(other), engine.tokenizer)
    assert math.isfinite(sum(float(p.sum()) for p in reward_model(prm, "cpu").parameters()))
    assert not any(p.requires_grad for p in reward_model(prm, "cpu").parameters())
