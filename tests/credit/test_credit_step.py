"""The credit step with an engine of thirty lines: no trainer anywhere."""

import dataclasses
import logging
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

from engines import tiny
from gear_rl import Credit, Gear, Uniform
from gear_rl.credit.credit_config import CreditConfig
from gear_rl.credit.step import for_loss, prepare, step
from gear_rl.credit.teacher_prompts import warn_of_long
from gear_rl.engine import Engine
from gear_rl.rollouts import Completions, left_padded
from gear_rl.signals.signal import BatchSignal, names_of
from gear_rl.types import Signal
from support.batches import PlainEngine, written
from support.scoring import score

COMPLETIONS = ["1 plus 2 is 3", "4", "it is 7 or 8", "no, it is 9"]


@pytest.fixture(scope="module")
def tokenizer():
    return tiny.tokenizer()


@pytest.fixture(scope="module")
def model(tokenizer):
    return tiny.louder(tiny.model(len(tokenizer)))


def prompts_of(tokenizer, texts):
    """Each text as a user's message, in the model's template."""
    chats = [[{"role": "user", "content": text}] for text in texts]
    rendered = [tokenizer.apply_chat_template(c, add_generation_prompt=True, tokenize=False) for c in chats]
    return left_padded([tokenizer(t, add_special_tokens=False)["input_ids"] for t in rendered], pad_id=0)


def batch(tokenizer, contexts=("is 3", "is 3", "is 7", "is 7")):
    """Two groups of two; in the first both have the same reward."""
    return written(
        tokenizer,
        COMPLETIONS,
        student=prompts_of(tokenizer, ["How much?"] * 4),
        prompts=[[{"role": "user", "content": "How much?"}]] * 4,
        rows=[{"answer": context} for context in contexts],
        rewards=[1.0, 1.0, 1.0, 0.0],
        advantage_B=torch.tensor([0.0, 0.0, 0.7, -0.7]),
        group=[0, 0, 1, 1],
    )


def run(model, tokenizer, method, rollouts, **settings):
    config = CreditConfig(**settings).resolved(method)
    engine = PlainEngine(tokenizer, model)
    assert isinstance(engine, Engine)
    return step(rollouts, method, engine, config), engine


def test_gears_credit_is_the_methods_own_of_the_signals_that_score_gives(model, tokenizer):
    method, rollouts = Gear(), batch(tokenizer)
    result, engine = run(model, tokenizer, method, rollouts)
    template = CreditConfig().template
    taught = [
        template.replace("{prompt}", "How much?").replace("{privileged_context}", row["answer"])
        for row in rollouts.rows
    ]
    teacher = prompts_of(tokenizer, taught)
    rows = torch.tensor([2, 3])  # the others have no advantage, and are not scored
    signals = score(
        model,
        Completions(
            **{name: getattr(rollouts.completions, name)[rows] for name in ("ids", "attention", "mask")}
        ),
        rollouts.student.take(rows),
        teacher.take(rows),
        needs=method.needs,
    )
    expected = method(rollouts.advantage_B[rows], signals)
    assert result.scored_B.tolist() == [False, False, True, True]
    torch.testing.assert_close(result.credit.advantage[rows], expected.advantage, rtol=1e-4, atol=1e-5)
    assert not result.credit.advantage[:2].any()
    assert (result.credit.advantage[2].unique().numel()) > 2, "spread over the tokens, and padding"
    assert torch.equal(for_loss(rollouts, result.credit), result.credit.advantage)
    assert engine.logged["gear/scored"] == 2.0 and engine.logged["gear/context/row"] == 4.0
    assert [record.context for record in engine.records] == ["answer"] * 4
    for record, context in zip(engine.records, ("is 3", "is 3", "is 7", "is 7"), strict=True):
        assert context in record.teacher_prompt and context not in record.prompt
    assert engine.records[2].credit == pytest.approx(
        result.credit.advantage[2][rollouts.completions.mask[2]].tolist()
    )


@dataclass(frozen=True, kw_only=True)
class Divides:
    name: ClassVar[str] = "divides"
    source: ClassVar[str] = "test"
    needs: ClassVar[tuple[str, ...]] = ()

    def __call__(self, advantage_B, signals) -> Credit:
        plain = Uniform()(advantage_B, signals)
        return dataclasses.replace(plain, advantage=plain.advantage / advantage_B[:, None])


def test_a_method_that_divides_by_zero_falls_back(tokenizer):
    rollouts, config = batch(tokenizer), CreditConfig().resolved(Divides())
    result = step(rollouts, Divides(), PlainEngine(tokenizer), config)
    assert result.fallback_B["non_finite"].tolist() == [True, True, False, False]
    assert not result.credit.advantage[:2].any() and result.credit.advantage[2].any()


class Blind(PlainEngine):
    """It has no forward passes at all."""

    def forward(self, request):
        raise AssertionError("never called")


@dataclass(frozen=True)
class Place(BatchSignal):
    name = "place"
    start: int = 0

    def compute(self, batch, engine):
        return torch.where(batch.completions.mask, batch.completions.mask.cumsum(-1) - 1 + self.start, -1)


@dataclass(frozen=True, kw_only=True)
class Counts:
    name: ClassVar[str] = "counts"
    source: ClassVar[str] = "test"
    needs: tuple[str | Signal, ...] = (Place(), "token_id")

    def __call__(self, advantage_B, signals) -> Credit:
        assert {*signals.values} >= {*names_of(self.needs)}
        ids = torch.where(signals.mask, 0, -1)
        return Credit.from_weights(advantage_B, 1.0 + signals.get(names_of(self.needs)[0]), ids)


def test_a_users_signal_is_an_object_in_needs(tokenizer):
    rollouts = batch(tokenizer)
    mask, base = rollouts.completions.mask, rollouts.advantage_B[:, None]
    config = CreditConfig().resolved(Counts())
    plain = step(rollouts, Counts(), Blind(tokenizer), config).credit.advantage
    assert torch.equal(plain, torch.where(mask, base * mask.cumsum(-1), 0.0))
    with pytest.raises(ValueError, match=r"needs: Place\(start=1\) and Place\(start=0\) are one signal at"):
        step(rollouts, Counts(needs=(Place(), Place(start=1))), Blind(tokenizer), config)


def test_a_context_beyond_the_bound_is_not_shown_and_its_completion_keeps_its_advantage(
    model, tokenizer, caplog
):
    long = "is 7 " * 200
    warn_of_long.cache_clear()
    with caplog.at_level(logging.WARNING):
        rollouts = batch(tokenizer, contexts=("is 3", "is 3", long, "is 7"))
        result, engine = run(model, tokenizer, Gear(), rollouts, max_privileged_tokens=50)
        run(model, tokenizer, Gear(), rollouts, max_privileged_tokens=50)
    assert result.fallback_B["long_context"].tolist() == [False, False, True, False]
    assert result.trusted_B.tolist() == [False, False, False, True]
    row = result.credit.advantage[2]
    assert row[rollouts.completions.mask[2]].unique().tolist() == pytest.approx([0.7])
    assert engine.logged["gear/fallback/long_context"] == 1.0
    assert caplog.text.count("more tokens than the teacher may be shown") == 1, "once, not at every step"
    unbound, _ = run(model, tokenizer, Gear(), rollouts, max_privileged_tokens=None)
    assert not unbound.fallback_B["long_context"].any()


@pytest.mark.parametrize("how", ["render", "splice"])
def test_prompt_context_and_completion_fit_into_the_models_positions(model, tokenizer, how):
    rollouts = batch(tokenizer, contexts=("is 3", "is 3", "is 7 " * 40, "is 7"))
    config = CreditConfig(teacher_prompt=how).resolved(Gear())
    engine = PlainEngine(tokenizer, model)

    def longest(plan):
        return int(
            (plan.teacher.prompts[0].attention_BP.sum(-1) + rollouts.completions.attention.sum(-1)).max()
        )

    whole = longest(prepare(rollouts, Gear(), engine, config))
    for places, fits in ((whole, True), (whole - 1, False)):
        engine.max_positions = places
        plan = prepare(rollouts, Gear(), engine, config)
        assert plan.fallback_B["long_context"].tolist() == [False, False, not fits, False]
        assert longest(plan) <= places
        assert (plan.teacher.contexts[2] is None, plan.teacher.sources[2] is None) == (not fits, not fits)
