"""vLLM as a server. TRL sends weights over NCCL, which a CPU has not: what it would send is tested."""

import pytest
import torch
from trl.generation.vllm_client import VLLMClient

from trl_vllm import runs
from trl_vllm.test_colocate import LORA, assert_same_credit, credit_without_vllm


@pytest.mark.parametrize("lora", [None, LORA], ids=["full", "lora"])
def test_rollouts_come_from_the_server_and_the_weights_that_are_sent_are_the_trained_ones(
    tmp_path, monkeypatch, chain_server, lora
):
    sent = []
    monkeypatch.setattr(VLLMClient, "init_communicator", lambda *_, **__: None)
    monkeypatch.setattr(
        VLLMClient,
        "update_named_params",
        lambda _, named, values: sent.append(({name: shape for name, _, shape in named}, {**copied(values)})),
    )
    url = {"vllm_mode": "server", "vllm_server_base_url": chain_server.url, "learning_rate": 1e-4}
    seen = runs.train(tmp_path / "run", lora=lora, **url)
    assert seen.passes.count("student") == 0 and seen.passes.count("old") == 2
    # The server has float32, and for the first step also the weights that are trained.
    assert seen.history("sampling/sampling_logp_difference/mean")[0] < 1e-4
    assert_same_credit(seen, credit_without_vllm(seen, tmp_path, monkeypatch), at_least=8)
    assert len(sent) == 2
    (announced, first), (_, second) = sent
    base = dict(runs.load(task="chain")[0].named_parameters())
    assert {name: list(value.shape) for name, value in first.items()} == announced
    assert first.keys() == base.keys(), "the server's own names, without an adapter"
    assert all(torch.allclose(value, base[name], atol=1e-6) for name, value in first.items())
    moved = [name for name, value in second.items() if not torch.equal(value, first[name])]
    assert {name.split(".")[-2] for name in moved} >= {"q_proj", "v_proj"}
    assert lora is None or {name.split(".")[-2] for name in moved} == {"q_proj", "v_proj"}


def copied(values):
    return {name: value.detach().clone() for name, value in values}
