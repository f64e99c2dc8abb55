"""The loop without a trainer: it learns, with credit that is not GRPO's."""

import importlib.util
from functools import partial
from pathlib import Path

import pytest
import torch

from engines.probing import Probe
from gear_rl import CreditConfig, Gear, LocalEngine, make_teacher, token_advantages
from gear_rl.arena import model as arena
from gear_rl.errors import warn_once
from gear_rl.methods import AntiSd, Cast, Gigpo, MtGrpo, Opsd, Raft, StepScores, Uniform

FILE = Path(__file__).parents[2] / "examples" / "loop.py"


def test_the_loop_without_a_trainer_learns(capsys):
    spec = importlib.util.spec_from_file_location("loop", FILE)
    assert spec is not None and spec.loader is not None
    loop = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loop)
    curve = loop.train(Gear(), 9)
    # From 0.56 to 0.88 on one processor; another draws other rollouts.
    assert sum(curve[-4:]) / 4 > sum(curve[:2]) / 2 + 0.12, curve
    shares = [float(line.split()[-1]) for line in capsys.readouterr().out.splitlines()]
    assert len(shares) == 9 and all(0.05 < share < 0.95 for share in shares), (
        "segments, and tokens beside them"
    )


PROMPT = [{"role": "user", "content": "12 +5 x2"}]
TEXTS = ("12 +5 = 17 ; 17 x2 = 35 ; ans 35<|im_end|>", "12 +5 = 17 ; 17 x2 = 34 ; ans 34<|im_end|>")
ROW = {"prompt": PROMPT, "solution": "12 +5 = 17"}
LIVE = CreditConfig(teacher_model_kind="live")
live_with = partial(CreditConfig, teacher_model_kind="live")


def resulting(method, config=None, changes=None, **given):
    """The result for two completions of one prompt, the first of which is wrong."""
    model, tokenizer = arena.load()
    engine = LocalEngine(model, tokenizer, **(changes or {}))
    usual = {"rows": [ROW] * 2, "completions": [tokenizer(text)["input_ids"] for text in TEXTS]}
    rollouts = engine.rollouts(**{**usual, "advantages": torch.tensor([-1.0, 1.0]), **given})
    return token_advantages(rollouts, method, engine, config), engine


def credited(method, config=None, changes=None, **given):
    """The advantages alone."""
    return resulting(method, config, changes, **given)[0].credit.advantage


def test_a_loop_of_ones_own_keeps_the_means_that_a_method_follows():
    """AntiSD's gate measures its threshold in the first batch, and needs it in the second."""
    engine = LocalEngine(*arena.load())
    ids = engine.tokenizer(TEXTS[0])["input_ids"]
    rollouts = engine.rollouts([ROW], [ids], torch.ones(1))
    method = AntiSd(warmup_steps=1)
    first = token_advantages(rollouts, method, engine).credit.advantage
    means = engine.state["gate"]
    assert len(means) == 1 and not torch.equal(first, torch.ones_like(first))
    means[0] *= 20  # the teacher was far less sure once
    second = token_advantages(rollouts, method, engine).credit.advantage
    assert torch.equal(second, torch.ones_like(first)) and len(means) == 2


def test_a_result_has_the_signals_and_tells_which_completions_are_the_methods_own():
    result, engine = resulting(Gear(), LIVE, rows=[ROW, {"prompt": PROMPT}])
    assert result.trusted_B.tolist() == [True, False]
    assert result.signals.divergence[0].max() > 0 and (result.signals.divergence[1] == 0).all()
    assert engine.metrics["gear/fallback/no_context"] == 1.0


@pytest.mark.parametrize(
    ("method", "given", "message"),
    [
        (Gear(), {}, r"teacher: 'gear' asks for a teacher of kind 'base'; .* make_teacher\('base', model\)"),
        (Opsd(), {}, "method: 'opsd' distils in the loss, which is yours; set sampled=True"),
        (Raft(), {"group": [0, 0]}, "group, rewards: 'raft' compares the completions of a group; give both"),
        (Gigpo(), {"rewards": [0.0, 1.0]}, "'gigpo' compares the completions of a group; give both"),
        (Cast(), {"group": [0, 0], "rewards": [0, 1], "config": LIVE},
         "is the student itself"),
        (Gear(), {"config": live_with(teacher_contrast="sibling")}, "group, rewards: 'gear' compares"),
        (Gear(), {"config": live_with(privileged_sources=["function"])}, "put what it returns into a column"),
        (Gear(), {"config": live_with(teacher_contrast="shufled")}, "teacher_contrast: no row has 'shufled'"),
        (Gear(), {"config": live_with(privileged_column="solutoin")}, "privileged_column: no row has 'soluto"),
        (Gear(), {"config": live_with(privileged_sources=["feedback"]), "logged": {"feedback": ["no", "ok"]}},
         "rewards: 'gear' shows the teacher feedback on failures; give rewards"),
    ],
)  # fmt: skip
def test_what_would_give_another_credit_is_refused(method, given, message):
    with pytest.raises(ValueError, match=message):
        credited(method, **given)


def test_a_misspelt_column_is_told(caplog):
    warn_once.cache_clear()
    credited(Gear(), LIVE, rows=[ROW, {"prompt": PROMPT}])
    assert not caplog.text
    credited(Gear(), LIVE, rows=[{"prompt": PROMPT, "soluton": "17"}] * 2)
    assert "rows: none of a batch has what the teacher of 'gear' is shown, so this is GRPO" in caplog.text


def test_advantages_in_half_precision_are_read_in_full():
    """1 - 0.001 rounds to 1 in bfloat16, and RAFT would see no best completion."""
    half = torch.tensor([-1.0, 1.0], dtype=torch.bfloat16)
    found = credited(Raft(), advantages=half, group=[0, 0], rewards=[0.999, 1.0])
    assert found.dtype == torch.float32 and found[1].any()


def test_a_method_without_a_context_takes_any_settings_of_one():
    config = live_with(privileged_sources=["sibling"], teacher_contrast="nowhere")
    assert (credited(Uniform(), config) != 0).any()


def test_turns_that_began_with_the_same_answer_of_a_tool_are_compared():
    """GiGPO with one state per turn: the reward is 1 and 0, and both turns get half of it on top."""
    _, tokenizer = arena.load()
    call, answer, *ends = (
        tokenizer(text)["input_ids"] for text in ("12 +5 =", " 17 ;", " ans 34", " ans 35")
    )
    sampled = [[True] * len(call) + [False] * len(answer) + [True] * len(end) for end in ends]
    found = credited(
        Gigpo(), completions=[call + answer + end for end in ends], sampled=sampled,
        advantages=[0.5, -0.5], group=[0, 0], rewards=[1.0, 0.0],
    )  # fmt: skip
    assert found[:, -1].tolist() == [1.0, -1.0]


def test_a_prompt_that_is_templated_or_refused_is_named():
    """The context would stand behind the assistant's header; the template's error would be a traceback."""
    model, tokenizer = arena.load()
    shown = tokenizer.apply_chat_template(PROMPT, tokenize=False, add_generation_prompt=True)
    templated = {**ROW, "prompt": shown}
    with pytest.raises(
        ValueError, match=r"prompt: prompt 2, '<\|im_start\|>.* went through the chat template"
    ):
        credited(Gear(), LIVE, rows=[ROW, templated])
    assert credited(Uniform(), rows=[templated] * 2).shape == credited(Uniform()).shape
    tokenizer.chat_template = "{% if messages[1] %}{{ raise_exception('one message') }}{% endif %}" + "1"
    rows = [ROW, {**ROW, "prompt": PROMPT * 2}]
    with pytest.raises(
        ValueError, match=r"template refuses prompt 2, user, user: '12 \+5 x2' \(one message\)"
    ):
        LocalEngine(model, tokenizer).rollouts(rows, [[5], [6]], torch.ones(2))


@pytest.mark.usefixtures("unchecked")
def test_what_has_another_type_or_shape_is_named():
    with pytest.raises(ValueError, match=r"method: 'gear' is no method; give an object such as Gear\(\)"):
        credited("gear")
    with pytest.raises(ValueError, match=r"advantages: shape \(2, 1\); give one number for each of 2"):
        credited(Uniform(), advantages=torch.ones(2, 1))


def test_a_method_that_reads_the_first_weights_needs_them():
    method = Probe(needs=("reference_logprob",))
    with pytest.raises(ValueError, match=r"reference: 'probe' reads .* make_teacher\('base', model\)"):
        credited(method)
    model, _ = arena.load()
    assert credited(method, changes={"reference": make_teacher("base", model)}).shape == (2, 10)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"sampled": []}, "sampled: 0 entries for 2 completions; give one for each"),
        ({"sampled": [[True] * 10]}, "sampled: 1 entries for 2 completions"),
        ({"sampled": [[True] * 10, [True] * 9]}, "sampled: 9 entries for 10 tokens of completion 1"),
        ({"rows": None}, "rows: None is no list; give one with an entry for each of 2 completions"),
        ({"rows": [ROW]}, "rows: 1 entries for 2 completions"),
        ({"rows": "17"}, "rows: '17' is no list"),
        ({"rows": ROW}, "rows: {'prompt': .* is no list"),
        (
            {"rows": [ROW, {"solution": "17"}]},
            "rows: {'solution': '17'} has no prompt; give it text or a list",
        ),
        ({"rows": ["17", ROW]}, "rows: '17' has no prompt"),
        ({"rows": [ROW, {"prompt": PROMPT[0]}]}, "rows: {'prompt': {'role': .* has no prompt"),
        ({"logged": {"step_scores": [1.0]}}, "step_scores: 1 entries for 2 completions"),
        ({"advantages": [1.0]}, "advantages: 1 entries for 2 completions"),
        ({"advantages": [None, 1.0]}, r"advantages: \[None, 1.0\] is no list of numbers"),
        ({"advantages": [1.0, float("nan")]}, "advantages: NaN or Inf; give finite numbers"),
        ({"rows": [ROW, ROW | {"prompt": ""}]}, "rows: prompt 1 has no token"),
        ({"rewards": ["a", "b"], "group": [0, 0]}, r"rewards: \['a', 'b'\] is no list of numbers"),
        ({"group": 0}, "group: 0 is no list"),
        ({"changes": {"teacher": "base"}}, "teacher: 'base' is no Teacher; give one, or leave it out"),
        ({"completions": []}, "completions: there are none"),
        ({"completions": [5, 6]}, "completions: '5' in completion 0 is no token .* give lists of ids"),
        ({"completions": [*TEXTS]}, "completions: '12 .*' in completion 0 is no token of the model's"),
        (
            {"completions": [[5, -100], [5]]},
            "completions: -100 in completion 0 is no token .* mark by sampled",
        ),
        ({"completions": [[5], [10**6]]}, "completions: 1000000 in completion 1 is no token"),
        ({"changes": {"batch_size": 0}}, "batch_size: 0; give 1 or more"),
    ],
)
def test_a_list_of_another_length_and_an_id_that_is_none_are_named(given, message):
    with pytest.raises(ValueError, match=message) as raised:
        credited(Gear(), **{"config": LIVE, **given})
    assert "\n" not in str(raised.value)


def test_a_tokenizer_without_padding_is_named():
    model, tokenizer = arena.load()
    tokenizer.pad_token = None
    with pytest.raises(ValueError, match=r"tokenizer: .*set tokenizer\.pad_token = tokenizer\.eos_token"):
        LocalEngine(model, tokenizer)


def test_advantages_and_marks_may_be_lists_or_tensors_and_a_completion_without_context_keeps_its_own():
    tensor = credited(Gear(), config=LIVE)
    assert torch.equal(tensor, credited(Gear(), config=LIVE, advantages=[-1.0, 1.0]))
    marks = torch.ones(2, 10, dtype=torch.bool)
    assert torch.equal(tensor, credited(Gear(), config=LIVE, sampled=marks))
    kept = credited(Gear(), config=LIVE, rows=[ROW, {"prompt": PROMPT, "solution": None}])
    assert torch.allclose(kept[0], tensor[0]) and torch.equal(kept[1], torch.ones_like(kept[1]))


def test_a_context_beyond_the_models_positions_falls_back_and_is_counted():
    model, _ = arena.load()
    long = {**ROW, "solution": "12 " * model.config.max_position_embeddings}
    result, engine = resulting(Gear(), LIVE, rows=[long, ROW])
    kept = result.credit.advantage[0]
    assert engine.metrics["gear/fallback/long_context"] == 1.0 and torch.equal(kept, -torch.ones_like(kept))


def test_the_teacher_that_is_made_before_the_first_step_is_read():
    live = credited(Gear(), LIVE)
    other, _ = arena.load()
    same = credited(Gear(), changes={"teacher": make_teacher("base", other)})
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(1.1)
    assert torch.equal(live, same)
    assert not torch.equal(live, credited(Gear(), changes={"teacher": make_teacher("base", other)}))


def test_groups_have_any_names_and_a_reward_may_be_missing():
    named = credited(Raft(), group=["a", "a"], rewards=[0.0, 1.0])
    assert torch.equal(named, credited(Raft(), group=torch.tensor([7, 7]), rewards=[0.0, 1.0]))
    assert (named[1] > 0).all() and (named[0] == 0).all()
    missing = credited(Raft(), group=[0, 0], rewards=[None, 1.0])
    assert (missing[0] == -1).all(), "a completion that nothing judged keeps its advantage"


def test_scores_of_steps_and_tokens_that_were_not_sampled():
    own = credited(
        StepScores(steps="tokens", use="weights"), logged={"step_scores": [[0.0] * 9 + [1.0], [1.0] * 10]}
    )
    assert own[0, -1] == 0 and (own[0, :-1] < -1).all()
    sampled = [[True] * 4 + [False] * 2 + [True] * 4] * 2
    group = {"group": [0, 0], "rewards": [0.0, 1.0]}
    logged = {"turn_rewards": [[1.0, 0.0], [0.0, 0.0]]}
    turns = credited(MtGrpo(), **group, sampled=sampled, logged=logged)
    assert (turns[:, 4:6] == 0).all() and turns[0, 0] != turns[0, -1]


def test_signals_read_the_settings_and_the_contexts_of_the_run():
    needs = ("success_B", "answer_region", "answer_confidence")
    config = CreditConfig(success_reward=0.5, answer_pattern="= 17")
    rows = [ROW, {"prompt": PROMPT, "solution": "12 +5"}]
    result, engine = resulting(Probe(needs=needs), config, rows=rows, group=[0, 0], rewards=[0.5, 0.4])
    signals = result.signals
    assert signals.success_B.tolist() == [1.0, 0.0]
    ids = torch.tensor(engine.tokenizer(TEXTS[0])["input_ids"])
    assert engine.tokenizer.decode(ids[signals.answer_region[0] == 1]).endswith("+5 = 17")
    confidence = signals.answer_confidence
    assert 0 < confidence[0, 0] < 1 and confidence[0, 0] != confidence[1, 0] > 0
