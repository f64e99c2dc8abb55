"""A served teacher without a server: what is refused, and how. `tests/trl_vllm` has a real server."""

from http.client import IncompleteRead

import pytest
import torch

from engines import tiny
from gear_rl import LocalEngine, ServedTeacher
from gear_rl.methods import METHODS
from gear_rl.model import served
from gear_rl.rollouts import left_padded, right_padded
from gear_rl.signals.passes import check_served
from gear_rl.signals.table import signals_of

NOWHERE = "http://127.0.0.1:9"
"""Nothing listens there."""


def test_a_server_that_is_not_there_is_one_error_that_names_the_setting():
    net, fast = tiny.model(290), tiny.tokenizer()
    with pytest.raises(ValueError, match=r"teacher_url: http://127.0.0.1:9 does not answer as a vLLM"):
        LocalEngine(net, fast, teacher=ServedTeacher(NOWHERE, retries=0))
    with pytest.raises(ValueError, match=r"temperature: 0.7, and a server scores prompts at temperature 1"):
        LocalEngine(net, fast, teacher=ServedTeacher(NOWHERE, retries=0), temperature=0.7)


def test_an_answer_that_breaks_off_is_asked_for_again_and_then_missing(monkeypatch):
    asked = []

    def broken(request, timeout):
        asked.append(request)
        raise IncompleteRead(b"{")

    monkeypatch.setattr(served, "urlopen", broken)
    teacher = ServedTeacher(NOWHERE, model="its", retries=1)
    prompts, completions = left_padded([[1, 2]], 0), right_padded([[3, 4]], None, 0)
    logprob, *_ = teacher.scores(prompts, completions, torch.tensor([True]))
    assert logprob.isnan().all() and (teacher.unserved, len(asked)) == (1, 2)


@pytest.mark.parametrize("name", [name for name in METHODS if name not in ("mixed",)])
def test_which_methods_a_served_teacher_is_enough_for(name):
    """Those whose only signal of the teacher is the log-prob of the sampled token; some more with top_k."""
    needed = {signal.name for signal in signals_of(METHODS[name]().needs) if signal.teacher}
    for top_k, enough in ((0, {"teacher_logprob"}), (8, {"teacher_logprob", "divergence"})):
        if needed <= enough:
            check_served(signals_of(METHODS[name]().needs), top_k, name)
        else:
            with pytest.raises(ValueError, match=f"teacher_url: '{name}' needs"):
                check_served(signals_of(METHODS[name]().needs), top_k, name)
