"""The loop without a trainer: it learns, with credit that is not GRPO's."""

import importlib.util
from pathlib import Path

import pytest
import torch

from engines.probing import Probe
from gear_rl import Gear, token_advantages
from gear_rl.arena import model as arena
from gear_rl.credit.config import CreditConfig
from gear_rl.methods import AntiSd, Cast, Gigpo, MtGrpo, Opsd, Raft, StepScores, Uniform
from gear_rl.signals.teacher import make_teacher

FILE = Path(__file__).parent.parent / "examples" / "loop.py"


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


def test_a_loop_of_ones_own_keeps_the_means_that_a_method_follows():
    """AntiSD's gate measures its threshold in the first batch, and needs it in the second."""
    model, tokenizer = arena.load()
    prompt, means = [{"role": "user", "content": "12 +5 x2"}], list[float]()
    ids = tokenizer("12 +5 = 17 ; 17 x2 = 35 ; ans 35<|im_end|>")["input_ids"]

    def call(method):
        return token_advantages(
            model, tokenizer, [prompt], [ids], ["12 +5 = 17"], torch.ones(1), method, means=means
        ).advantage

    method = AntiSd(warmup_steps=1)
    first = call(method)
    assert len(means) == 1 and not torch.equal(first, torch.ones_like(first))
    means[0] *= 20  # the teacher was far less sure once
    assert torch.equal(call(method), torch.ones_like(first)) and len(means) == 2


PROMPT = [{"role": "user", "content": "12 +5 x2"}]
TEXTS = ("12 +5 = 17 ; 17 x2 = 35 ; ans 35<|im_end|>", "12 +5 = 17 ; 17 x2 = 34 ; ans 34<|im_end|>")


def credited(method, **given):
    """The credit of two completions of one prompt, the first of which is wrong."""
    model, tokenizer = arena.load()
    ids = [tokenizer(text)["input_ids"] for text in TEXTS]
    usual = {"prompts": [PROMPT] * 2, "completions": ids, "contexts": ["12 +5 = 17"] * 2}
    given = {**usual, "advantages": torch.tensor([-1.0, 1.0]), "method": method, **given}
    return token_advantages(model, tokenizer, **given).advantage


@pytest.mark.parametrize(
    ("method", "given", "message"),
    [
        (Gear(), {}, r"teacher: 'gear' asks for a teacher of kind 'base'; .* make_teacher\('base', model\)"),
        (Opsd(), {}, "method: 'opsd' distils in the loss, which is yours; set sampled=True"),
        (Raft(), {"group": [0, 0]}, "group, rewards: 'raft' compares the completions of a group; give both"),
        (Gigpo(), {"rewards": [0.0, 1.0]}, "'gigpo' compares the completions of a group; give both"),
        (Cast(), {"group": [0, 0], "rewards": [0, 1], "config": CreditConfig(teacher_model_kind="live")},
         "is the student itself"),
    ],
)  # fmt: skip
def test_what_would_give_another_credit_is_refused(method, given, message):
    with pytest.raises(ValueError, match=message):
        credited(method, **given)


def test_a_prompt_that_is_templated_or_refused_is_named():
    """The context would stand behind the assistant's header; the template's error would be a traceback."""
    _, tokenizer = arena.load()
    templated = tokenizer.apply_chat_template(PROMPT, tokenize=False, add_generation_prompt=True)
    config = CreditConfig(teacher_model_kind="live")
    with pytest.raises(
        ValueError, match=r"prompt: prompt 2, '<\|im_start\|>.* went through the chat template"
    ):
        credited(Gear(), prompts=[PROMPT, templated], config=config)
    assert credited(Uniform(), prompts=[templated] * 2).shape == credited(Uniform()).shape
    model, _ = arena.load()
    tokenizer.chat_template = "{% if messages[1] %}{{ raise_exception('one message') }}{% endif %}" + "1"
    prompts, ids, contexts = [PROMPT, PROMPT * 2], [[5], [6]], ["4", "4"]
    with pytest.raises(
        ValueError, match=r"template refuses prompt 2, user, user: '12 \+5 x2' \(one message\)"
    ):
        token_advantages(model, tokenizer, prompts, ids, contexts, torch.ones(2), Uniform())


@pytest.mark.usefixtures("unchecked")
def test_what_has_another_type_or_shape_is_named():
    with pytest.raises(ValueError, match=r"method: 'gear' is no method; give an object such as Gear\(\)"):
        credited("gear")
    with pytest.raises(ValueError, match=r"advantages: shape \(2, 1\); give one number for each of 2"):
        credited(Uniform(), advantages=torch.ones(2, 1))


LIVE = CreditConfig(teacher_model_kind="live")


def test_a_method_that_reads_the_first_weights_needs_them():
    method = Probe(needs=("reference_logprob",))
    with pytest.raises(ValueError, match=r"reference: 'probe' reads .* make_teacher\('base', model\)"):
        credited(method)
    model, _ = arena.load()
    assert credited(method, reference=make_teacher("base", model)).shape == (2, 10)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"sampled": []}, "sampled: 0 entries for 2 completions; give one for each"),
        ({"sampled": [[True] * 10]}, "sampled: 1 entries for 2 completions"),
        ({"sampled": [[True] * 10, [True] * 9]}, "sampled: 9 entries for 10 tokens of completion 1"),
        ({"contexts": None}, "contexts: None is no list; give one with an entry for each of 2 completions"),
        ({"contexts": ["12 +5 = 17"]}, "contexts: 1 entries for 2 completions"),
        ({"contexts": "17"}, "contexts: '17' is no list"),
        ({"contexts": {"a": 1, "b": 2}}, "contexts: {'a': 1, 'b': 2} is no list"),
        ({"prompts": [PROMPT]}, "prompts: 1 entries for 2 completions"),
        ({"prompts": "12 +5 x2"}, r"prompts: '12 \+5 x2' is no list"),
        ({"prompts": PROMPT * 2}, "prompts: {'role': .* is neither text nor a list of messages"),
        ({"advantages": [1.0]}, "advantages: 1 entries for 2 completions"),
        ({"advantages": [None, 1.0]}, r"advantages: \[None, 1.0\] is no list of numbers"),
        ({"rewards": ["a", "b"], "group": [0, 0]}, r"rewards: \['a', 'b'\] is no list of numbers"),
        ({"group": 0}, "group: 0 is no list"),
        ({"teacher": "base"}, "teacher: 'base' is no Teacher; give one, or leave it out"),
        ({"completions": []}, "completions: there are none"),
        ({"completions": [5, 6]}, "completions: '5' in completion 0 is no token .* give lists of ids"),
        ({"completions": [*TEXTS]}, "completions: '12 .*' in completion 0 is no token of the model's"),
        (
            {"completions": [[5, -100], [5]]},
            "completions: -100 in completion 0 is no token .* mark by sampled",
        ),
        ({"completions": [[5], [10**6]]}, "completions: 1000000 in completion 1 is no token"),
        ({"batch_size": 0}, "batch_size: 0; give 1 or more"),
        ({"log": {}}, r"log: {} is not called; give a function of the metrics, such as metrics.update"),
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
        token_advantages(model, tokenizer, [PROMPT], [[5]], ["17"], torch.ones(1), Gear(), config=LIVE)


def test_advantages_and_marks_may_be_lists_or_tensors_and_a_completion_without_context_keeps_its_own():
    tensor = credited(Gear(), config=LIVE)
    assert torch.equal(tensor, credited(Gear(), config=LIVE, advantages=[-1.0, 1.0]))
    marks = torch.ones(2, 10, dtype=torch.bool)
    assert torch.equal(tensor, credited(Gear(), config=LIVE, sampled=marks))
    kept = credited(Gear(), config=LIVE, contexts=["12 +5 = 17", None])
    assert torch.allclose(kept[0], tensor[0]) and torch.equal(kept[1], torch.ones_like(kept[1]))


def test_a_context_beyond_the_models_positions_falls_back_and_is_counted():
    model, _ = arena.load()
    metrics: dict[str, float] = {}
    long = "12 " * model.config.max_position_embeddings
    kept = credited(Gear(), config=LIVE, contexts=[long, "12 +5 = 17"], log=metrics.update)
    assert metrics["gear/fallback/long_context"] == 1.0 and torch.equal(kept[0], -torch.ones_like(kept[0]))


def test_the_teacher_that_is_made_before_the_first_step_is_read():
    live = credited(Gear(), config=CreditConfig(teacher_model_kind="live"))
    other, _ = arena.load()
    same = credited(Gear(), teacher=make_teacher("base", other))
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(1.1)
    assert torch.equal(live, same)
    assert not torch.equal(live, credited(Gear(), teacher=make_teacher("base", other)))


def test_groups_have_any_names_and_a_reward_may_be_missing():
    named = credited(Raft(), group=["a", "a"], rewards=[0.0, 1.0])
    assert torch.equal(named, credited(Raft(), group=torch.tensor([7, 7]), rewards=[0.0, 1.0]))
    assert (named[1] > 0).all() and (named[0] == 0).all()
    missing = credited(Raft(), group=[0, 0], rewards=[None, 1.0])
    assert (missing[0] == -1).all(), "a completion that nothing judged keeps its advantage"


def test_scores_of_steps_and_tokens_that_were_not_sampled():
    own = credited(StepScores(steps="tokens", use="weights"), step_scores=[[0.0] * 9 + [1.0], [1.0] * 10])
    assert own[0, -1] == 0 and (own[0, :-1] < -1).all()
    sampled = [[True] * 4 + [False] * 2 + [True] * 4] * 2
    turns = credited(
        MtGrpo(), group=[0, 0], rewards=[0.0, 1.0], sampled=sampled, turn_rewards=[[1.0, 0.0], [0.0, 0.0]]
    )
    assert (turns[:, 4:6] == 0).all() and turns[0, 0] != turns[0, -1]
