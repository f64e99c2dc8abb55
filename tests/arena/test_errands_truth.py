"""The truth about the tokens of a rollout of "errands"."""

import contextlib
from collections.abc import Sequence
from itertools import chain
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gear_rl.arena.codes import CODES
from gear_rl.arena.errands import TASK
from gear_rl.arena.errands import problem as errands
from gear_rl.arena.errands.env import ErrandsEnv
from gear_rl.arena.errands.problem import RIGHT, Call, play_calls
from gear_rl.arena.errands.truth import truth
from gear_rl.arena.model import CHAT_TEMPLATE_KWARGS, EOS, answer_text, load, tokens

TOKENIZER: Any = load(task="errands")[1]
TOOLS = [ErrandsEnv().send, ErrandsEnv().wait]
SEED = 0
[ROW] = TASK.rows("easy", num=1, first_seed=SEED)
PROBLEM = errands.generate(SEED, "easy")
GOLD = PROBLEM.sends()
WAIT = Call("wait", {})
PROMPT = TOKENIZER.apply_chat_template(
    ROW["prompt"], tools=TOOLS, add_generation_prompt=True, return_dict=False, **CHAT_TEMPLATE_KWARGS
)


def _wrong(request: int) -> Call:
    code = next(code for code in CODES if code not in RIGHT.values())
    return Call("send", {"item": PROBLEM.items[request], "code": code})


def _env(calls: Sequence[Call] = ()) -> ErrandsEnv:
    env = ErrandsEnv()
    env.reset(**ROW)
    for call in calls:
        assert getattr(env, call.name)(**call.arguments) == "ok", "the answer says nothing"
    return env


def _tokens_of(*made: Call) -> list[int]:
    return [*chain.from_iterable(tokens(TOKENIZER, play_calls(made)))]


def _facts(ids: list[int]) -> list[tuple[str, int, bool, str]]:
    """What the truth says of the tokens that are decisions."""
    facts = truth(ids, ROW, TOKENIZER)
    assert (facts.num_decisions, facts.exact) == (3, False)
    found = [
        (TOKENIZER.decode([i]), decision, right, TOKENIZER.decode([gold]))
        for i, decision, right, gold in zip(ids, facts.decision, facts.right, facts.right_id, strict=True)
        if decision >= 0
    ]
    assert facts.decision.count(-1) == len(ids) - len(found)
    led = [t for t, what in enumerate(facts.lost) if what]
    assert {t for t, gold in enumerate(facts.right_id) if gold >= 0} == {
        *led, *(t for t, decision in enumerate(facts.decision) if decision >= 0)
    }  # fmt: skip
    return found


def test_truth_by_hand() -> None:
    wrong = _wrong(1)
    codes = [str(call.arguments["code"]) for call in GOLD]
    ids = _tokens_of(WAIT, wrong, GOLD[1], GOLD[0], GOLD[0])
    assert _facts(ids) == [
        (wrong.arguments["code"], 1, False, codes[1]),
        (codes[0], 0, True, codes[0]),
    ]
    decided = truth(ids, ROW, TOKENIZER).decision
    # The code is the seventh token of its turn; a wait has 16 tokens.
    assert [t for t, decision in enumerate(decided) if decision >= 0] == [16 + 6, 16 + 20 + 20 + 6]


def _led(ids: list[int]) -> list[tuple[int, str, tuple[int, ...], bool]]:
    """The form that the truth requires: place, due token, decisions lost without it, whether it is there."""
    facts = truth(ids, ROW, TOKENIZER)
    return [
        (t, TOKENIZER.decode([facts.right_id[t]]), what, facts.right[t])
        for t, what in enumerate(facts.lost)
        if what
    ]


FRAME = [
    "<tool_call>",
    '\n{"name": "',
    '", "arguments": {"item": "',
    '", "code": "',
    '"}}\n',
    "</tool_call>",
    EOS,
]
"""The tokens of a call beside tool, item and code, which are the third, the fifth and the seventh."""


def test_a_call_has_a_form_as_long_as_a_request_is_left() -> None:
    led = _led(_tokens_of(GOLD[1], WAIT))
    # In any order: where another than the first is sent no item is due. A call has 20 tokens with its answer.
    places = [0, 1, 3, 5, 7, 8, 9]
    assert led[:7] == [(t, due, (0, 1, 2), True) for t, due in zip(places, FRAME, strict=True)]
    # A wait is as good as a call, and is shorter by four; then "done", and 0 and 2 were left.
    wait = ["<tool_call>", '\n{"name": "', '", "arguments": {}}\n', "</tool_call>", EOS]
    assert led[7:12] == [(20 + t, due, (0, 2), True) for t, due in zip([0, 1, 3, 4, 5], wait, strict=True)]
    assert led[12:] == [(36, "<tool_call>", (0, 2), False)], "what follows has no form"
    # In their order each item is due, and holds its own request.
    whole = _led(_tokens_of(*GOLD))
    items = [entry for entry in whole if entry[1] in PROBLEM.items]
    assert items == [(20 * n + 4, item, (n,), True) for n, item in enumerate(PROBLEM.items)]
    assert max(t for t, *_ in whole) == 49, "after the last request nothing is left to lose"


@pytest.mark.parametrize(
    ("right", "wrong", "found"),
    [
        ('"name"', '"nam"', (1, FRAME[1], (0, 1, 2))),
        ('"send"', '"lamp"', (2, "send", (0, 1, 2))),
        ('", "code', '" "code', (5, FRAME[3], (0, 1, 2))),
        (f'"{RIGHT[PROBLEM.items[0]]}"', '"kite"', (6, RIGHT[PROBLEM.items[0]], (0,))),
        ("}}", "}", (7, FRAME[4], (0, 1, 2))),
        ("</tool_call>", "", (8, "</tool_call>", (0, 1, 2))),
    ],
)
def test_what_breaks_a_call_is_found_where_it_stands(
    right: str, wrong: str, found: tuple[int, str, tuple[int, ...]]
) -> None:
    text = GOLD[0].text
    assert right in text
    broken = _led(TOKENIZER(text.replace(right, wrong, 1) + EOS)["input_ids"])
    assert [entry[:3] for entry in broken if not entry[3]] == [found]
    assert broken[-1][:3] == found, "what follows has no form"


def test_truth_of_a_turn_with_two_calls_and_of_one_that_was_cut_off() -> None:
    both = TOKENIZER("\n".join(call.text for call in GOLD[:2]) + EOS)["input_ids"]
    assert [decision for _, decision, _, _ in _facts(both)] == [0, 1]
    broken = TOKENIZER(GOLD[0].text + GOLD[1].text.replace("}}", "}") + EOS)["input_ids"]
    assert _facts(broken) == [], "a turn of which one call cannot be parsed makes none"
    cut = TOKENIZER(GOLD[0].text.removesuffix("</tool_call>"))["input_ids"]
    assert len(_facts(cut)) == 1 and _facts([*cut, TOKENIZER.eos_token_id]) == []
    assert _facts(cut[:-1]) == [] == _facts([])


TEXTS = st.sampled_from(
    [
        *(call.text for call in (*GOLD, WAIT, _wrong(0), _wrong(2))),
        GOLD[0].text.replace("}}", "}"),
        GOLD[1].text.replace('"code"', '"cod"'),
        GOLD[1].text.replace("send", "sent"),
        Call("send", {"code": RIGHT[PROBLEM.items[2]], "item": PROBLEM.items[2]}).text,
        Call("send", {"item": PROBLEM.items[0], "code": 7}).text,
        Call("send", {"item": "moon", "code": "17"}).text,
        *("<tool_call>", "</tool_call>", "hm", "\n", ""),
    ]
)


@settings(max_examples=30)
@given(turns=st.lists(st.lists(TEXTS, max_size=3), max_size=8), cut=st.integers(0, 40))
def test_the_right_decisions_make_up_the_reward(turns: list[list[str]], cut: int) -> None:
    """As TRL's loop would play them: parsed by its parser, carried out by a real environment."""
    from trl.chat_template_utils import parse_response

    from gear_rl.engines.trl.rollouts import parse_tool_calls

    assert parse_tool_calls(TOKENIZER)
    env, completion = _env(), list[int]()
    for i, texts in enumerate(turns):
        ids = TOKENIZER("".join(texts) + EOS)["input_ids"]
        ids = ids[: len(ids) - cut] if i == len(turns) - 1 and cut < len(ids) else ids
        completion += ids
        for call in parse_response(TOKENIZER, ids, prefix=PROMPT, tools=TOOLS).get("tool_calls") or ():
            with contextlib.suppress(ValueError, TypeError, AttributeError):
                getattr(env, call["function"]["name"])(**call["function"]["arguments"])
        if ids[-1:] == [TOKENIZER.eos_token_id]:
            completion += TOKENIZER(answer_text("ok"))["input_ids"]
    facts = truth(completion, ROW, TOKENIZER)
    rights = {n for n, right in zip(facts.decision, facts.right, strict=True) if right and n >= 0}
    assert len(rights) / 3 == pytest.approx(env.get_reward())
