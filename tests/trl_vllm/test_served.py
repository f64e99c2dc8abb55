"""A teacher behind a real vLLM server: the credit of a local one, and what happens when the server dies."""

import logging
import time

import pytest
import torch
from transformers.trainer_callback import TrainerCallback

from engines import tiny
from gear_rl import CreditConfig, Gear, LocalEngine, Rlsd, ServedTeacher, make_teacher, token_advantages
from gear_rl.arena.model import CHAT_TEMPLATE_KWARGS, load, sample
from gear_rl.arena.task import TEMPLATE, get_task
from trl_vllm import runs
from trl_vllm.server import serving

NO_VLLM = {"use_vllm": False}


@pytest.fixture(scope="module")
def chain():
    """Model, tokenizer, and two sampled completions of each of 16 problems, as arguments of ``rollouts``."""
    model, tokenizer = load(task="chain")
    rows = [row for row in get_task("chain").rows("easy", num=16) for _ in range(2)]
    ids = [tokenizer(text + "<|im_end|>")["input_ids"] for text in sample(model, tokenizer, rows, seed=3)]
    return model, tokenizer, rows, ids


def credited(chain, method, teacher, **settings):
    model, tokenizer, rows, ids = chain
    engine = LocalEngine(model, tokenizer, teacher=teacher, chat_template_kwargs=CHAT_TEMPLATE_KWARGS)
    config = CreditConfig(**{"teacher_prompt_template": TEMPLATE} | settings)
    return token_advantages(engine.rollouts(rows, ids, [1.0, -0.5] * 16), method, engine, config)


def gap(one, other, name):
    mask = one.signals.mask & one.scored_B[:, None]
    return (one.signals.get(name) - other.signals.get(name)).abs()[mask]


SPLICE = {"teacher_prompt": "splice", "teacher_prompt_template": None}


@pytest.mark.parametrize("settings", [{}, {"teacher_skip_first_tokens": 2}, SPLICE], ids=str)
def test_rlsd_is_that_of_the_local_teacher(chain, chain_server, settings):
    teachers = make_teacher("base", chain[0]), ServedTeacher(chain_server.url)
    local, served = (credited(chain, Rlsd(), teacher, **settings) for teacher in teachers)
    error = gap(served, local, "teacher_logprob")
    print(f"teacher_logprob: error {error.max():.2g} at most, {error.mean():.2g} on average, nats")
    assert error.max() < 1e-4 and local.signals.teacher_logprob.abs().max() > 1
    torch.testing.assert_close(served.credit.advantage, local.credit.advantage, atol=1e-4, rtol=1e-4)
    assert len(local.credit.advantage[0].unique()) > 2


def test_the_divergence_of_the_likeliest_tokens_nears_the_exact_one_from_below(chain, chain_server):
    local, errors = credited(chain, Gear(), make_teacher("base", chain[0])), []
    exact = local.signals.divergence
    for top_k in (1, 8, 64):
        served = credited(chain, Gear(), ServedTeacher(chain_server.url, top_k=top_k))
        assert (served.signals.divergence <= exact + 1e-4).all()
        error, credit = gap(served, local, "divergence"), served.credit.advantage - local.credit.advantage
        print(
            f"top_k {top_k}: divergence {exact.max():.2f} at most, error {error.max():.2g} at most, "
            f"{error.mean():.2g} on average; credit {credit.abs().max():.2g} at most"
        )
        errors.append(error.max())
    assert errors[0] > errors[1] > errors[2] and errors[2] < 0.3


def test_in_trl_and_no_text_of_a_context_is_logged(tmp_path, chain_server, caplog):
    both = {}
    for name, more in (
        ("local", {"teacher_model_kind": "base"}),
        ("served", {"teacher_url": chain_server.url}),
    ):
        with caplog.at_level(logging.DEBUG, logger="gear_rl"):
            begin = time.perf_counter()
            both[name] = runs.train(tmp_path / name, "rlsd", **NO_VLLM, **more)
            print(f"{name}: {time.perf_counter() - begin:.1f} s for two steps of 32")
    local, served = both["local"].results[0], both["served"].results[0]
    assert gap(served, local, "teacher_logprob").max() < 1e-4
    torch.testing.assert_close(served.credit.advantage, local.credit.advantage, atol=1e-4, rtol=1e-4)
    assert both["served"].passes.count("teacher") == 0 and both["local"].passes.count("teacher") > 0
    assert both["served"].history("gear/teacher/unserved") == [0.0, 0.0]
    texts = {row["privileged_context"] for row in both["served"].batches[0]["rows"]}
    logged = caplog.text + chain_server.log.read_text(errors="replace")
    assert texts and not [text for text in texts if text in logged]


def test_another_tokenizer_is_refused(chain_server):
    with pytest.raises(ValueError, match=r"teacher_url: the model .* has another tokenizer than the student"):
        LocalEngine(tiny.model(290), tiny.tokenizer(), teacher=ServedTeacher(chain_server.url))


def test_a_server_that_dies_is_counted_and_the_run_goes_on_or_stops(tmp_path, caplog):
    with serving(runs.save_model(tmp_path / "model", "chain"), tmp_path / "log.txt") as server:

        class Kill(TrainerCallback):
            def on_step_end(self, args, state, control, **kwargs):
                server.kill()

        given = {**NO_VLLM, "teacher_url": server.url, "teacher_check_steps": 0}
        seen = runs.train(tmp_path / "run", "rlsd", steps=3, callbacks=[Kill()], **given)
        unserved = seen.history("gear/teacher/unserved")
        assert unserved[0] == 0 and all(count > 0 for count in unserved[1:])
        assert unserved[1:] == seen.history("gear/fallback/non_finite")[1:]
        [said] = [record.message for record in caplog.records if "teacher_url" in record.message]
        assert "the others keep their GRPO advantage" in said and "refused" in said
        result = seen.results[1]
        alone = result.fallback_B["non_finite"]
        plain = torch.where(result.signals.mask, seen.batches[1]["advantage_B"][:, None], 0.0)
        assert alone.any() and torch.equal(result.credit.advantage[alone], plain[alone])
    given["teacher_url_failure"] = "stop"
    with pytest.raises(ValueError, match=r"teacher_url: http://\S+ does not answer as a vLLM server does"):
        runs.train(tmp_path / "again", "rlsd", **given)


@pytest.mark.parametrize("name", ["opsd", "gear"])
def test_a_method_that_needs_more_is_refused(tmp_path, chain_server, name):
    with pytest.raises(ValueError, match=f"teacher_url: (credit )?'{name}' (needs|distils)"):
        runs.train(tmp_path, name, **NO_VLLM, teacher_url=chain_server.url)
