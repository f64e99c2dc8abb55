"""A served teacher without a server: what is refused, and how. `tests/trl_vllm` has a real server."""

from http.client import IncompleteRead
from io import BytesIO

import pytest
import torch

from engines import tiny
from gear_rl import LocalEngine, ServedTeacher
from gear_rl.methods import METHODS
from gear_rl.model import served
from gear_rl.rollouts import left_padded, right_padded
from gear_rl.signals.passes import check_served
from gear_rl.signals.table import signals_of
from gear_rl.tensor.bucketed import bucketed_divergence
from gear_rl.tensor.logits import Head

NOWHERE = "http://127.0.0.1:9"
"""Nothing listens there."""


def test_a_server_that_is_not_there_is_one_error_that_names_the_setting():
    net, fast = tiny.model(290), tiny.tokenizer()
    with pytest.raises(ValueError, match=r"teacher_url: http://127.0.0.1:9 does not answer as a vLLM"):
        LocalEngine(net, fast, teacher=ServedTeacher(NOWHERE, retries=0))
    with pytest.raises(ValueError, match=r"temperature: 0.7, and a server scores prompts at temperature 1"):
        LocalEngine(net, fast, teacher=ServedTeacher(NOWHERE, retries=0), temperature=0.7)


def test_another_added_token_is_another_tokenizer(monkeypatch):
    own, other = tiny.tokenizer(), tiny.tokenizer()
    for fast, token in ((own, "<one>"), (other, "<two>")):
        fast.add_tokens([token, *map("<{}>".format, range(500))])
    teacher = ServedTeacher(NOWHERE, model="its")

    def answer(path, body):
        tokens = other(body["prompt"], add_special_tokens=False) if path == "/tokenize" else {}
        return {"tokens": tokens.get("input_ids")}

    monkeypatch.setattr(teacher, "_answer", answer)
    with pytest.raises(ValueError, match="has another tokenizer than the student"):
        teacher.check_use(own, 1.0)
    teacher.check_use(other, 1.0)


def test_a_surplus_batch_of_bfloat16_states_has_no_divergence_in_float32():
    head, none = Head(weight_VD=torch.eye(3, dtype=torch.bfloat16)), torch.empty(0, 3, dtype=torch.bfloat16)
    found = bucketed_divergence(none, head, torch.empty(0, 2).long(), torch.empty(0, 2))
    assert found.shape == (0,) and found.dtype == torch.float32


@pytest.mark.parametrize(
    ("answer", "requests"),
    [
        (IncompleteRead(b"{"), 4),
        (b'{"choices": [{"prompt_logprobs": [null, null, null, null]}]}', 2),
        (TimeoutError("timed out"), 2),  # the others would only wait for it
    ],
    ids=["breaks off", "null", "late"],
)
def test_an_answer_that_is_none_is_asked_for_again_and_then_missing(monkeypatch, answer, requests):
    asked = []

    def answered(request, timeout):
        asked.append(request)
        if isinstance(answer, Exception):
            raise answer
        return BytesIO(answer)

    monkeypatch.setattr(served, "urlopen", answered)
    teacher = ServedTeacher(NOWHERE, model="its", retries=1, requests_at_once=1)
    prompts, completions = left_padded([[1, 2]] * 2, 0), right_padded([[3, 4]] * 2, None, 0)
    logprob, *_ = teacher.scores(prompts, completions, torch.tensor([True, True]))
    assert logprob.isnan().all() and (teacher.unserved, len(asked)) == (2, requests)


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
