"""The task "codebook": one planted fault, a reward that counts what stands there, and the truth by hand."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gear_rl.arena.codebook import problem as codebook
from gear_rl.arena.codebook.truth import truth
from gear_rl.arena.model import EOS, PAD, load

ANSWER = "Ka 12 Bo 34 Mi 56 Fe 78"


@pytest.mark.parametrize(
    ("completion", "right"),
    [
        ("codes Ka 12 Bo 34 Mi 56 Fe 78", 4),
        ("codes Ka 12 hm so Bo 34 also and Mi 56 now then Fe 78", 4),
        ("codes Fe 78 Ka 12", 2),  # the order is free, what is left out is wrong
        ("codes Ka 99 Ka 12", 0),  # what is written first counts
        ("codes Ka 12 Ka 99", 1),
        ("codes Ka hm 12 Bo: 34 Mi  56", 0),  # the code comes right after its symbol
        ("codes Ka \u0661\u0662", 0),
        ("", 0),
    ],
)
def test_the_reward_is_the_share_that_is_right(completion: str, right: int) -> None:
    assert codebook.share_right(completion, ANSWER) == right / 4
    assert codebook.codebook_reward([completion], [ANSWER]) == [right / 4]
    assert codebook.codebook_reward([completion], [f"all {ANSWER}"]) == [float(right == 4)]
    assert codebook.exact_reward([completion], [ANSWER]) == [float(right == 4)]


ROW = {"answer": "Ka 12 Bo 34 Mi 56"}
TOKENIZER: Any = load(task="codebook")[1]
IDS = st.one_of(
    st.sampled_from([TOKENIZER.convert_tokens_to_ids(f" {word}") for word in ("Ka", "Bo", "Mi", "Fe", "12")]),
    st.sampled_from(TOKENIZER(" 12 34 56 so codes 1 2 K a M i" + EOS + PAD)["input_ids"]),
    st.integers(0, len(TOKENIZER) - 1),
)


def _ids(text: str) -> list[int]:
    return TOKENIZER(text)["input_ids"]


def test_truth_by_hand() -> None:
    ids = _ids("codes Ka 12 so Bo 99 hm Mi 56" + EOS)
    facts = truth(ids, ROW, TOKENIZER)
    assert facts.decision == [-1, -1, 0, -1, -1, 1, -1, -1, 2, -1]
    assert facts.right == [False, True, True, False, True, False, False, True, True, False]
    named = [TOKENIZER.convert_ids_to_tokens(i) if i >= 0 else None for i in facts.right_id]
    assert named == [None, " Ka", " 12", None, " Bo", " 34", None, " Mi", " 56", None]
    assert facts.lost == [(), (0,), (), (), (1,), (), (), (2,), (), ()]
    assert (facts.num_decisions, facts.exact) == (3, False)
    assert truth(ids, {"answer": f"all {ROW['answer']}"}, TOKENIZER).exact


@pytest.mark.parametrize(
    ("text", "place", "lost"),
    [
        ("codes Ka 12 Fe 34 Mi 56", 3, (1,)),  # a symbol that was not to be looked up
        ("codes Ka 12 Ka 34 Mi 56", 3, (1,)),  # one that has been
        ("codes Ka 12 Bo Mi 56", 4, (1,)),  # no code where one was due
        ("codes 99 Ka 12 Bo 34 Mi 56", 1, (0,)),  # a code of nothing
        ("codes Ka 12" + EOS, 3, (1, 2)),  # an end too early
        ("codes Ka 12 Mi 56 Bo 34" + EOS, None, ()),  # another order costs nothing
        ("codes so Ka 12 so hm Bo 34 Mi 56" + EOS, None, ()),  # nor do words that nothing judges
    ],
)
def test_what_breaks_the_form_loses_the_decisions_that_depend_on_it(text, place, lost) -> None:
    facts = truth(_ids(text), ROW, TOKENIZER)
    broken = {t: what for t, what in enumerate(facts.lost) if what and not facts.right[t]}
    assert broken == ({} if place is None else {place: lost})
    if place is not None:
        due = "34" if text.endswith("Bo Mi 56") else ["Ka", "Bo", "Mi"][lost[0]]
        assert TOKENIZER.convert_ids_to_tokens(facts.right_id[place]) == f" {due}"


@given(ids=st.lists(IDS, max_size=17))
def test_the_right_decisions_make_up_the_reward(ids: list[int]) -> None:
    facts = truth(ids, ROW, TOKENIZER)
    taken: dict[int, set[bool]] = {}
    for decision, right, right_id in zip(facts.decision, facts.right, facts.right_id, strict=True):
        assert right_id >= 0 or (decision < 0 and not right)
        if decision >= 0:
            taken.setdefault(decision, set()).add(right)
    assert all(len(rights) == 1 for rights in taken.values())
    cut = ids[: ids.index(TOKENIZER.eos_token_id)] if TOKENIZER.eos_token_id in ids else ids
    text: Any = TOKENIZER.decode(cut, skip_special_tokens=True)
    assert sum(map(sum, taken.values())) / 3 == codebook.share_right(text, ROW["answer"])
