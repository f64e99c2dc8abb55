"""``Scorer`` as two functions, for tests that score once."""

from gear_rl.signals.score import Scorer


def score(model, completions, student, teacher=None, *, needs, student_states=None, **settings):
    scorer = Scorer(model=model, completions=completions, **settings)
    return scorer.signals(needs, student, teacher, student_states)


def teacher_states(model, completions, teacher, **settings):
    return Scorer(model=model, completions=completions, **settings).teacher_states(teacher)
