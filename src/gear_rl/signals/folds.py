"""The signals of the two shared forward passes: log-probabilities, entropies, divergences, in nats.

``p`` is the student's next-token distribution where the token was drawn, ``q`` the teacher's, which sees the
privileged context too.
"""

from collections.abc import Sequence

from torch import Tensor

from gear_rl.signals.signal import FoldSignal, States
from gear_rl.tensor.divergences import divergences
from gear_rl.tensor.logits import token_statistics


def _statistics(names: Sequence[str], states: States) -> dict[str, Tensor]:
    """What one pass over the vocabulary gives."""
    if states.student_ND is None:  # the teacher's log-prob alone: the teacher takes the student's place
        assert states.teacher_ND is not None
        alone = token_statistics(states.teacher_ND, states.token_N, states.teacher_head or states.head)
        return {"teacher_logprob": alone.student_logprob}
    compared = "teacher_logprob" in names or "divergence" in names
    teacher_ND = states.teacher_ND if compared else None
    both = token_statistics(states.student_ND, states.token_N, states.head, teacher_ND, states.teacher_head)
    return {name: getattr(both, name) for name in names}


def _divergences(names: Sequence[str], states: States) -> dict[str, Tensor]:
    """What takes two passes over the vocabulary."""
    return divergences(states.student_ND, states.head, states.teacher_ND, states.teacher_head, names=[*names])


STUDENT_LOGPROB = FoldSignal("student_logprob", _statistics, student=True)
"""log p of the sampled token."""
TEACHER_LOGPROB = FoldSignal("teacher_logprob", _statistics, teacher=True)
"""log q of the sampled token."""
STUDENT_ENTROPY = FoldSignal("student_entropy", _statistics, student=True)
"""Entropy of p."""
DIVERGENCE = FoldSignal("divergence", _statistics, student=True, teacher=True)
"""KL(p || q), the reverse KL."""
FORWARD_DIVERGENCE = FoldSignal("forward_divergence", _divergences, student=True, teacher=True)
"""KL(q || p), the forward KL."""
JS_DIVERGENCE = FoldSignal("js_divergence", _divergences, student=True, teacher=True)
"""Jensen-Shannon divergence of p and q, at most log 2."""
TEACHER_ENTROPY = FoldSignal("teacher_entropy", _divergences, teacher=True)
"""Entropy of q."""
STUDENT_VARENTROPY = FoldSignal("student_varentropy", _divergences, student=True)
"""Variance of -log p under p, nats squared."""
FOLD_SIGNALS = (
    STUDENT_LOGPROB, TEACHER_LOGPROB, STUDENT_ENTROPY, DIVERGENCE, FORWARD_DIVERGENCE, JS_DIVERGENCE,
    TEACHER_ENTROPY, STUDENT_VARENTROPY,
)  # fmt: skip
DIVERGENCES = tuple(signal.name for signal in FOLD_SIGNALS if signal.is_divergence)
