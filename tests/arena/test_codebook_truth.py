"""Which tokens of a completion are decisions, and which of them are right: by hand, and as the reward counts."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gear_rl.arena.codebook import problem as codebook
from gear_rl.arena.codebook.recipe import ATOMS
from gear_rl.arena.codebook.truth import truth
from gear_rl.arena.model import EOS, PAD, build_tokenizer
from gear_rl.arena.task import get_task

ROW = {"answer": "Ka 12 Bo 34 Mi 56"}
TOKENIZER = build_tokenizer(["user\ncodes Ka\nref codes Ka 12"] * 9, ATOMS)
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
    assert facts.decision == (-1, -1, 0, -1, -1, 1, -1, -1, 2, -1)
    assert facts.right == (False, True, True, False, True, False, False, True, True, False)
    named = [TOKENIZER.convert_ids_to_tokens(i) if i >= 0 else None for i in facts.right_id]
    assert named == [None, " Ka", " 12", None, " Bo", " 34", None, " Mi", " 56", None]
    assert facts.lost == ((), (0,), (), (), (1,), (), (), (2,), (), ())
    assert (facts.num_decisions, facts.exact) == (3, False)
    assert truth(ids, {"answer": f"all {ROW['answer']}"}, TOKENIZER).exact


def test_a_decision_belongs_to_its_symbol_and_is_taken_once() -> None:
    facts = truth(_ids("codes Mi 56 Ka 99 Ka 12 Fe 12"), ROW, TOKENIZER)
    assert facts.decision == (-1, -1, 2, -1, 0, -1, -1, -1, -1)
    taken = [r for d, r in zip(facts.decision, facts.right, strict=True) if d >= 0]
    assert taken == [True, False]
    assert facts.num_decisions == 3, "one that is not taken is still one"


def test_a_code_in_several_tokens_is_one_decision() -> None:
    digits = [TOKENIZER.convert_tokens_to_ids(char) for char in "\u012012"]  # a space is this letter in bytes
    facts = truth([*_ids("codes Ka"), *digits, *_ids(" Bo 34")], ROW, TOKENIZER)
    assert facts.decision == (-1, -1, -1, 0, 0, -1, 1)
    assert facts.right == (False, True, False, True, True, True, True)


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
def test_what_breaks_the_form_loses_the_decisions_that_hang_on_it(text, place, lost) -> None:
    facts = truth(_ids(text), ROW, TOKENIZER)
    broken = {t: what for t, what in enumerate(facts.lost) if what and not facts.right[t]}
    assert broken == ({} if place is None else {place: lost})
    if place is not None:
        due = "34" if text.endswith("Bo Mi 56") else ["Ka", "Bo", "Mi"][lost[0]]
        assert TOKENIZER.convert_ids_to_tokens(facts.right_id[place]) == f" {due}"


def test_padding_and_what_follows_the_end_change_nothing() -> None:
    ids = _ids("codes Ka 12" + EOS)
    padded = truth([*ids, *_ids(" Bo 34"), TOKENIZER.pad_token_id], ROW, TOKENIZER)
    alone = truth(ids, ROW, TOKENIZER)
    assert padded.decision == (*alone.decision, -1, -1, -1)
    assert padded.right == (*alone.right, False, False, False)
    assert truth([], ROW, TOKENIZER).decision == ()


def test_a_row_without_an_answer_is_an_error() -> None:
    with pytest.raises(KeyError, match="answer"):
        truth([], {}, TOKENIZER)


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


def test_irrelevant_words_leave_no_formula() -> None:
    """The student finds its place in the list by them, so a decision is not all that matters to the next."""
    task = get_task("codebook")
    assert {tier: task.truth_of(tier) is None for tier in task.budgets} == {
        tier: tier == "words" for tier in task.budgets
    }
