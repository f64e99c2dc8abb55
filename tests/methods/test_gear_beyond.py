"""GEAR with what its authors leave to future work: other divergences, other signals of where a segment ends."""

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gear_rl.methods import RandomOnsets, Shuffled, Uniform
from gear_rl.types import TokenSignals
from methods.completions import ANY, PROPERTY, literal, rollouts, thresholds
from methods.test_gear import advantages, slow_gear, turns_of

ONE = torch.tensor([1.0])
SENTENCES, LINES = [0, 0, 1, 1, 1, 2], [0, 0, 0, 1, 1, 1]


def signals_of(turn_id=None, **rows):
    values = {name: torch.tensor([row]) for name, row in rows.items()}
    values = {name: x if name.endswith("_id") else x.float() for name, x in values.items()}
    mask = torch.ones(1, len(next(iter(rows.values()))), dtype=torch.bool)
    return TokenSignals(mask=mask, turn_id=None if turn_id is None else torch.tensor([turn_id]), **values)


# the divergence


SIX = signals_of(
    divergence=[0, 4, 0, 0, 1, 0],
    forward_divergence=[1, 0, 0, 5, 1, 1],
    js_divergence=[0, 0, 0.25, 0, 0, 0.5],
    student_entropy=[0, 0, 0, 0, 0, 0],
)


@pytest.mark.parametrize(
    ("divergence", "segment_id", "raw"),
    [
        # z = 0, 1, 0, 0, 1/4, 0: an onset at 1, open to the end
        ("reverse", [0, 1, 1, 1, 1, 1], [1, 2, 2, 2, 2, 2]),
        # z = 1/5, 0, 0, 1, 1/5, 1/5: an onset at 3
        ("forward", [0, 1, 2, 3, 3, 3], [1.2, 1, 1, 2, 2, 2]),
        # z = 0, 0, 1/2, 0, 0, 1: peaks at 2 and 5
        ("jsd", [0, 1, 2, 2, 2, 3], [1, 1, 1.5, 1.5, 1.5, 2]),
    ],
)
@pytest.mark.parametrize("advantage", [2.0, -0.5])
def test_divergence(divergence, segment_id, raw, advantage):
    gear = literal(divergence=divergence)
    credit = gear(torch.tensor([advantage]), SIX)
    assert credit.segment_id[0].tolist() == segment_id
    assert credit.advantage[0].tolist() == pytest.approx([advantage * w * 6 / sum(raw) for w in raw])


def test_the_floor_is_one_of_the_divergence_that_is_read():
    """1/2 and 1/4 nats of Jensen-Shannon; the reverse KL of 4 nats elsewhere counts for nothing."""
    for floor, onset in ((0.25, [0, 0, 1, 0, 0, 1]), (0.26, [0, 0, 0, 0, 0, 1]), (0.6, [0] * 6)):
        found = literal(divergence="jsd", onset_floor_nats=floor).onsets(ANY, SIX)[1]
        assert found.long().tolist() == [onset]


def test_a_segment_takes_this_divergence_also_where_the_onset_was_sought_elsewhere():
    """Entropy 0, 0, 2, 0, 0, 0 opens at 2; z of Jensen-Shannon is 1/2 there, and 1 at 5."""
    signals = dataclasses.replace(SIX, student_entropy=torch.tensor([[0.0, 0.0, 2.0, 0.0, 0.0, 0.0]]))
    gear = literal(divergence="jsd", onset_signal="entropy", end_rule="turn", renormalise="none")
    assert gear(ONE, signals).advantage.tolist() == [[1, 1, 1.5, 1.5, 1.5, 1.5]]


@pytest.mark.parametrize("estimator", ["k3", "abs_k1"])
def test_only_the_reverse_divergence_is_estimated_from_the_sampled_token(estimator):
    assert literal(divergence="reverse", estimator=estimator).needs[:2] == (
        "student_logprob",
        "teacher_logprob",
    )
    for divergence in ("forward", "jsd"):
        message = f"^divergence: '{divergence}' cannot be estimated by '{estimator}'.*set estimator to 'full'"
        with pytest.raises(ValueError, match=message):
            literal(divergence=divergence, estimator=estimator)


# where a segment ends


# z = 0, 1, 0, 0, 0, 0: one onset, at 1
ENDS = signals_of(
    divergence=[0, 4, 0, 0, 0, 0],
    student_entropy=[0, 0, 0, 2, 1, 0],
    teacher_entropy=[0, 3, 0, 0, 3, 1.4],
    student_varentropy=[1, 0, 4, 0, 0, 2],
    sentence_id=SENTENCES,
    line_id=LINES,
)


@pytest.mark.parametrize(
    ("settings", "segment_id"),
    [
        # the student decides anew at 3 (level 1)
        ({}, [0, 1, 1, 2, 3, 4]),
        ({"end_signal": "student_entropy"}, [0, 1, 1, 2, 3, 4]),
        # the teacher at 4; at the onset itself nothing ends
        ({"end_signal": "teacher_entropy"}, [0, 1, 1, 1, 2, 3]),
        # its last level, 1.4 / 3 = 0.47, is an end from a threshold of 0.46 on
        ({"end_signal": "teacher_entropy", "end_threshold": 0.46, "entropy_norm": "max"}, [0, 1, 1, 1, 2, 3]),
        # levels 1/4, 0, 1, 0, 0, 1/2
        ({"end_signal": "student_varentropy"}, [0, 1, 2, 3, 4, 5]),
        ({"end_signal": "student_varentropy", "end_threshold": 1.1}, [0, 1, 1, 1, 1, 1]),
        # certain at once by the teacher: below 1/2 at 2; not below it by the varentropy, but at 3
        ({"end_signal": "teacher_entropy", "end_rule": "entropy_drop"}, [0, 1, 2, 3, 4, 5]),
        ({"end_signal": "student_varentropy", "end_rule": "entropy_drop"}, [0, 1, 1, 2, 3, 4]),
        # log 20 = 2.996 is the scale: 3 nats are above 1, 1.4 nats are 0.467
        (
            {
                "end_signal": "teacher_entropy",
                "entropy_norm": "log_vocab",
                "vocab_size": 20,
                "end_threshold": 1.0,
            },
            [0, 1, 1, 1, 2, 3],
        ),
        (
            {
                "end_signal": "teacher_entropy",
                "entropy_norm": "log_vocab",
                "vocab_size": 21,
                "end_threshold": 1.0,
            },
            [0, 1, 1, 1, 1, 1],
        ),
        # the text: a sentence begins at 2, a line at 3
        ({"end_rule": "sentence"}, [0, 1, 2, 3, 4, 5]),
        ({"end_rule": "line"}, [0, 1, 1, 2, 3, 4]),
        ({"end_rule": "line", "max_segment_tokens": 1}, [0, 1, 2, 3, 4, 5]),
        ({"end_rule": "turn"}, [0, 1, 1, 1, 1, 1]),
    ],
)
def test_what_ends_a_segment(settings, segment_id):
    credit = literal(renormalise="none", **settings)(ONE, ENDS)
    assert credit.segment_id[0].tolist() == segment_id
    assert credit.advantage[0].tolist() == [2.0 if i == 1 else 1.0 for i in segment_id]


def test_an_onset_in_the_middle_of_a_sentence_reaches_to_its_end():
    """Onsets at 2 and 6; sentences of four and three tokens, of which the second is cut by a turn."""
    rows = {"divergence": [0, 0, 4, 0, 0, 0, 2, 0, 0], "sentence_id": [0, 0, 0, 0, 1, 1, 1, 2, 2]}
    gear = literal(end_rule="sentence", renormalise="none")
    credit = gear(ONE, signals_of(**rows))
    assert credit.segment_id[0].tolist() == [0, 1, 2, 2, 3, 4, 5, 6, 7]
    assert credit.advantage[0].tolist() == [1, 1, 2, 2, 1, 1, 1.5, 1, 1]
    # turns end before 3 and before 7: the first segment loses its second token
    turned = gear(ONE, signals_of([0, 0, 0, 1, 1, 1, 1, 2, 2], **rows))
    assert turned.segment_id[0].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8]


# needs


@pytest.mark.parametrize(
    ("settings", "needs"),
    [
        ({"divergence": "forward"}, ("forward_divergence", "student_entropy")),
        ({"divergence": "jsd"}, ("js_divergence", "student_entropy")),
        ({"divergence": "jsd", "onset_rule": "never"}, ("js_divergence",)),
        ({"end_signal": "teacher_entropy"}, ("divergence", "teacher_entropy")),
        ({"end_signal": "student_varentropy"}, ("divergence", "student_varentropy")),
        ({"end_signal": "teacher_entropy", "end_rule": "entropy_drop"}, ("divergence", "teacher_entropy")),
        ({"end_signal": "teacher_entropy", "end_rule": "turn"}, ("divergence",)),
        ({"end_signal": "teacher_entropy", "onset_rule": "never"}, ("divergence",)),
        ({"end_rule": "sentence"}, ("divergence", "sentence_id")),
        ({"end_rule": "line", "end_signal": "teacher_entropy"}, ("divergence", "line_id")),
        ({"end_rule": "line", "onset_rule": "never"}, ("divergence",)),
        (
            {"end_signal": "teacher_entropy", "onset_signal": "entropy"},
            ("divergence", "teacher_entropy", "student_entropy"),
        ),
        ({"onset_signal": "entropy", "end_rule": "line"}, ("divergence", "line_id", "student_entropy")),
        (
            {"divergence": "jsd", "onset_signal": "log_ratio", "end_rule": "sentence"},
            ("js_divergence", "student_logprob", "teacher_logprob", "sentence_id"),
        ),
        ({"estimator": "k3", "end_rule": "sentence"}, ("student_logprob", "teacher_logprob", "sentence_id")),
    ],
)
def test_needs_follow_the_settings(settings, needs):
    gear = literal(**settings)
    assert gear.needs == needs
    every = {
        name: torch.tensor([LINES, SENTENCES]) if name.endswith("_id") else torch.rand(2, 6) for name in needs
    }
    mask = torch.ones(2, 6, dtype=torch.bool)
    signals = TokenSignals(mask=mask, token_id=torch.arange(12).view(2, 6), **every)
    for method in (gear, Shuffled(of=gear), RandomOnsets(of=gear)):
        assert method(torch.tensor([1.0, -1.0]), signals).advantage.isfinite().all()
    for name in needs:
        with pytest.raises(ValueError, match=repr(name)):
            gear(torch.tensor([1.0, -1.0]), dataclasses.replace(signals, **{name: None}))


@pytest.mark.parametrize(
    ("field", "choice", "choices"),
    [
        ("divergence", "kl", "reverse, forward, jsd"),
        ("end_signal", "entropy", "student_entropy, teacher_entropy, student_varentropy"),
        ("end_rule", "word", "next_fork, entropy_drop, fixed_length, turn, sentence, line"),
    ],
)
def test_a_choice_that_does_not_exist_is_refused_by_name(field, choice, choices):
    gear = literal()
    # The type checker of the tests stops the constructor before our own check, which users rely on.
    object.__setattr__(gear, field, choice)
    with pytest.raises(ValueError, match=f"^{field}: '{choice}' is not one of {choices}"):
        gear.__post_init__()


def test_varentropy_has_no_scale_of_the_vocabulary():
    with pytest.raises(ValueError, match="entropy_norm: 'log_vocab' is the scale of an entropy"):
        literal(entropy_norm="log_vocab", vocab_size=9, end_signal="student_varentropy")


# the slow twin


beyond = st.builds(
    literal,
    divergence=st.sampled_from(["reverse", "forward", "jsd"]),
    onset_rule=st.sampled_from(["peak", "peak", "threshold", "local_max"]),
    onset_threshold=thresholds,
    end_rule=st.sampled_from(["next_fork", "entropy_drop", "sentence", "line"]),
    end_signal=st.sampled_from(["student_entropy", "teacher_entropy", "student_varentropy"]),
    end_threshold=thresholds,
    max_segment_tokens=st.sampled_from([None, 2]),
    alpha=st.sampled_from([0.5, 1.0]),
    sign_mode=st.sampled_from(["agnostic", "aware"]),
)


@st.composite
def written(draw):
    """Rollouts with every signal that these settings may read; sentences and lines begin anywhere in a turn."""
    first, second = draw(rollouts()), None
    T = first.mask.shape[1]

    def table():
        cells = draw(st.lists(st.integers(0, 12), min_size=3 * T, max_size=3 * T))
        return torch.tensor(cells).view(3, T) / 4

    def text():
        cells = draw(st.lists(st.booleans(), min_size=3 * T, max_size=3 * T))
        turn_id = turns_of(first)
        new_turn = first.mask & (turn_id != torch.nn.functional.pad(turn_id, (1, 0), value=-1)[:, :T])
        begins = first.mask & (torch.tensor(cells).view(3, T) | new_turn)
        return torch.where(first.mask, begins.cumsum(-1) - 1, -1)

    second = {name: table() for name in ("forward_divergence", "js_divergence", "teacher_entropy")}
    return dataclasses.replace(
        first, **second, student_varentropy=table(), sentence_id=text(), line_id=text()
    )


@PROPERTY
@given(beyond, advantages, written())
def test_agrees_with_the_pseudocode(gear, advantage_B, signals):
    """The twin ends a segment at a level of 1 or more where a unit of the text begins."""
    credit = gear(advantage_B, signals)
    name = {"reverse": "divergence", "forward": "forward_divergence", "jsd": "js_divergence"}[gear.divergence]
    ids = {"sentence": signals.sentence_id, "line": signals.line_id}.get(gear.end_rule)
    for b, A in enumerate(advantage_B.tolist()):
        counts = signals.mask[b]
        d, turn = signals.get(name)[b][counts].tolist(), turns_of(signals)[b][counts].tolist()
        read, twin = signals.get(gear.end_signal)[b][counts].tolist(), gear
        if ids is not None:
            own = ids[b][counts].tolist()
            read = [float(i == 0 or own[i] != own[i - 1]) for i in range(len(own))]
            twin = dataclasses.replace(
                gear,
                end_rule="next_fork",
                entropy_norm="none",
                end_threshold=0.5,
                end_signal="student_entropy",
            )
        expected, segments = slow_gear(twin, A, d, read, turn, d)
        found = credit.advantage[b][counts].tolist()
        assert found == pytest.approx([A * w for w in expected], rel=1e-5, abs=1e-7)
        inside = {t for s, e in segments for t in range(s + 1, e)}
        opens = [t not in inside for t in range(len(d))]
        assert credit.segment_id[b][counts].tolist() == [sum(opens[: t + 1]) - 1 for t in range(len(d))]


@PROPERTY
@given(beyond, advantages, written())
def test_alpha_zero_and_a_teacher_that_agrees_are_grpo_bit_for_bit(gear, advantage_B, signals):
    grpo = Uniform()(advantage_B, signals).advantage
    assert torch.equal(dataclasses.replace(gear, alpha=0.0)(advantage_B, signals).advantage, grpo)
    zero = torch.zeros_like(signals.divergence)
    agreed = dataclasses.replace(signals, divergence=zero, forward_divergence=zero, js_divergence=zero)
    assert torch.equal(gear(advantage_B, agreed).advantage, grpo)
