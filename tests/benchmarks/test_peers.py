"""The competitors compute the same numbers: with each other, and with float64."""

import pytest
import torch

from benchmarks import peers
from benchmarks.peers import (
    ALL,
    COMPETITORS,
    Competitor,
    bare,
    chosen,
    errors,
    exact,
    operands,
    why_missing,
)

HERE = operands(tokens=37, hidden=16, vocab=501)
TRUE = exact(HERE)
RUN = [name for name in COMPETITORS if name != "bare" and why_missing(name, HERE) is None]


def test_float64_is_the_definition_whatever_the_blocks():
    [row] = [exact(HERE.first(1, 501), vocab_tile=tile) for tile in (100,)]
    log_p, log_q = (
        torch.log_softmax(HERE.weight_VD.double() @ x[0].double(), -1)
        for x in (HERE.student_ND, HERE.teacher_ND)
    )
    token = int(HERE.token_N[0])
    by_hand = {
        "logp": log_p[token],
        "teacher_logp": log_q[token],
        "entropy": -sum(p * p.log() for p in log_p.exp()),
        "kl": sum(p.exp() * (p - q) for p, q in zip(log_p, log_q, strict=True)),
    }
    assert {name: value.item() for name, value in row.items()} == pytest.approx(
        {name: float(value) for name, value in by_hand.items()}, abs=1e-12
    )
    for name, value in exact(HERE, block=5, vocab_tile=77).items():
        torch.testing.assert_close(value, TRUE[name], rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", RUN)
@torch.no_grad()
def test_every_competitor_gives_what_it_says_and_it_is_right(name):
    competitor = COMPETITORS[name]
    found = competitor.run(HERE)
    assert set(found) == set(competitor.gives)
    wrong = errors(found, TRUE)
    assert set(wrong) == set(competitor.gives) and max(wrong.values()) < 2e-5


def test_the_peers_that_are_installed_are_all_of_trl():
    pytest.importorskip("trl.kernels.chunked_divergence")
    assert {"trl_both", "trl_divergence", "trl_logprob", "trl_functions", "rlsd", "naive", "eager"} <= set(
        RUN
    )
    assert set(COMPETITORS["trl_both"].gives) == set(ALL)


def test_errors_are_the_largest_and_over_the_tokens_that_are_known():
    found = {"kl": torch.tensor([1.0, 2.5, 9.0]), "other": torch.tensor([1.0])}
    assert errors(found, {"kl": torch.tensor([1.5, 2.0]), "logp": torch.tensor([0.0])}) == {"kl": 0.5}


@pytest.mark.parametrize("tile", [(5, 100), (37, 501), (64, 4096)])
def test_the_bare_products_are_the_whole_head(tile, monkeypatch):
    """Every logit of both models is computed once: the limit does not flatter anybody."""
    products = []
    mm = torch.mm

    def counted(a, b, out):
        products.append((a.data_ptr() // a.element_size(), a.shape[0], b.shape[1]))
        return mm(a, b, out=out)

    monkeypatch.setattr(peers.torch, "mm", counted)
    assert bare(HERE, *tile) == {}
    assert sum(rows * columns for _, rows, columns in products) == 2 * 37 * 501


def test_only_the_products_are_rounded_to_the_type_of_the_products():
    """With bfloat16 the errors are a bfloat16's, and those of logits that are rounded so by hand."""
    true, low = exact(HERE), exact(HERE, product=torch.bfloat16)
    logits = (HERE.student_ND.bfloat16() @ HERE.weight_VD.bfloat16().t()).double()
    by_hand = logits.log_softmax(-1).gather(-1, HERE.token_N[:, None])[:, 0]
    assert low["logp"].dtype == torch.float64
    torch.testing.assert_close(low["logp"], by_hand, rtol=0, atol=1e-12)
    assert 1e-4 < (low["logp"] - true["logp"]).abs().max() < 1


def test_the_operands_have_certain_and_open_positions_and_small_divergences():
    found = exact(operands(tokens=400, hidden=64, vocab=2000))
    assert found["entropy"].min() < 1e-3 and found["entropy"].max() > 3
    assert found["kl"].min() < 1e-4 and found["kl"].median() < 0.1 < found["kl"].max()
    again = operands(tokens=37, hidden=16, vocab=501)
    assert torch.equal(again.student_ND, HERE.student_ND) and torch.equal(again.token_N, HERE.token_N)


def test_a_smaller_vocabulary_keeps_its_tokens_inside():
    few = HERE.first(30, 50)
    assert len(few.weight_VD) == 50 and len(few.token_N) == 30 and few.token_N.max() < 50


@pytest.mark.parametrize("field", ["tokens", "hidden", "vocab"])
def test_an_empty_size_is_refused(field):
    with pytest.raises(ValueError, match=f"{field}: 0; give 1 or more"):
        operands(**({"tokens": 2, "hidden": 2, "vocab": 2} | {field: 0}))


def test_what_does_not_fit_is_left_out_and_says_so(monkeypatch):
    needed = 7 * 4 * 37 * 501
    monkeypatch.setattr(peers, "_free_bytes", lambda device: 2 * needed)
    assert why_missing("naive", HERE) is None
    monkeypatch.setattr(peers, "_free_bytes", lambda device: 2 * needed - 1)
    assert "GiB of logits" in why_missing("naive", HERE)
    assert why_missing("eager", HERE) is None


def test_what_is_not_installed_says_so():
    assert peers._needs("no_such_library.part", "X")("cpu") == "no_such_library.part is not installed"
    assert why_missing("liger_jsd", HERE) == "Liger runs on CUDA only"


def test_all_or_none():
    assert chosen("all") == list(COMPETITORS) and set(chosen("none")) == {"bare", "eager"}
    with pytest.raises(ValueError, match="peers: 'trl' is not one of all, none"):
        chosen("trl")


def test_no_competitor_claims_a_number_with_fewer_head_products_than_it_needs():
    for competitor in COMPETITORS.values():
        assert isinstance(competitor, Competitor)
        assert competitor.heads >= (2 if {"kl", "teacher_logp", "jsd"} & set(competitor.gives) else 1)
