"""Turns, segments and peaks: each routine agrees with the loop over tokens that defines it."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from gear_rl.tensor.segments import (
    at_segment_start,
    segment_ids,
    segment_lengths,
    segment_starts,
    since_segment_start,
    turn_ids,
)
from tensor.tables import PROPERTY, by_row, tables, with_nan


def turn_ids_loop(mask):
    ids, turn, inside = [], -1, False
    for is_token in mask:
        if is_token and not inside:
            turn += 1
        inside = is_token
        ids.append(turn if is_token else -1)
    return ids


def segment_ids_loop(max_tokens):
    def loop(onset, boundary, mask):
        ids, current, opened_at = [], -1, None
        for t, is_token in enumerate(mask):
            if not is_token:
                opened_at = None
                ids.append(-1)
                continue
            full = opened_at is not None and max_tokens is not None and t - opened_at >= max_tokens
            if onset[t]:
                current, opened_at = current + 1, t
            elif opened_at is None or boundary[t] or full:
                current, opened_at = current + 1, None
            ids.append(current)
        return ids

    return loop


def starts_loop(ids):
    return [i >= 0 and i not in ids[:t] for t, i in enumerate(ids)]


def since_loop(ids):
    return [t - ids.index(i) if i >= 0 else -1 for t, i in enumerate(ids)]


def at_start_loop(row, ids):
    return [row[ids.index(i)] if i >= 0 else 0.0 for i in ids]


def lengths_loop(ids):
    return [ids.count(i) if i >= 0 else 0 for i in ids]


@st.composite
def segmentations(draw):
    """Values and the ids of segments that onsets, boundaries and masked tokens made."""
    x, onset, boundary, mask = draw(tables(float, bool, bool, bool))
    ids = by_row(segment_ids_loop(None), onset, boundary, mask)
    return x, torch.tensor(ids, dtype=torch.int64).view(mask.shape)


@PROPERTY
@given(tables(bool))
def test_a_turn_is_a_run_of_true_tokens(table):
    (mask,) = table
    assert turn_ids(mask).tolist() == by_row(turn_ids_loop, mask)


@PROPERTY
@given(tables(bool, bool, bool), st.one_of(st.none(), st.integers(1, 4)))
def test_segment_ids_agree_with_the_loop(table, max_tokens):
    expected = by_row(segment_ids_loop(max_tokens), *table)
    assert segment_ids(*table, max_tokens=max_tokens).tolist() == expected


@PROPERTY
@given(segmentations())
def test_starts_and_lengths_of_segments_agree_with_the_loops(segmentation):
    x, ids = segmentation
    assert segment_starts(ids).tolist() == by_row(starts_loop, ids)
    since = torch.where(ids >= 0, since_segment_start(ids), -1)
    assert since.tolist() == by_row(since_loop, ids)
    assert at_segment_start(with_nan(x, ids >= 0), ids).tolist() == by_row(at_start_loop, x, ids)
    assert segment_lengths(ids).tolist() == by_row(lengths_loop, ids)
