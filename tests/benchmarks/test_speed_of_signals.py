"""python -m benchmarks signals and memory: every number is there, and says what it is a ratio of."""

import pytest
import torch

from benchmarks import memory, signals
from benchmarks.measure import can_measure_peaks
from benchmarks.memory import bench_memory, fresh_peak, measured
from benchmarks.peers import COMPETITORS, Competitor
from benchmarks.signals import bench_signals

HEADLINES = {
    "ratio_eager",
    "ratio_bf16",
    "extra_mb",
    "max_error_kl",
    "max_error_entropy",
    "speedup_vs_trl",
    "memory_vs_trl",
    "memory_vs_naive",
    "exponent_t",
    "exponent_v",
}
TINY = {"tokens": 8, "hidden": 4, "vocab": 64, "repeats": 2}
PEAKS = pytest.mark.skipif(not can_measure_peaks(), reason="the system does not tell a process its peak")


@pytest.fixture
def clock(monkeypatch):
    """A clock that shows how often something ran instead of how long: numbers that a test can foretell."""

    def cost(name):
        word, _, size = name.partition(" ")
        tokens, _, vocab = size.partition("x")
        if word == "bare":  # a tile of the limit
            return 1.0 if size in ("", "8x64") else 4.0
        factor = {"eager": 2.0, "trl_both": 6.0, "naive": 4.0}.get(word.rstrip(","), 3.0)
        return factor * int(tokens) * int(vocab) if vocab else factor

    def interleaved(runs, repeats, device="cpu", say=lambda name: None):
        for run in runs.values():
            run()
        return {name: [cost(name) * 1.5, cost(name)] for name in runs}

    monkeypatch.setattr(signals, "interleaved", interleaved)


def test_the_headlines_are_ratios_of_the_rows(clock, monkeypatch):
    peaks = {"bare": 1.0, "eager": 2.0, "trl_both": 100.0, "naive": 400.0}
    monkeypatch.setattr(signals, "fresh_peak", lambda name, *rest: {"extra_mb": peaks.get(name, 7.0)})
    monkeypatch.setattr(signals, "can_measure_peaks", lambda device: True)
    found = bench_signals(**TINY)
    assert set(found) >= HEADLINES
    rows = found["competitors"]
    assert found["ratio_eager"] == rows["eager"]["ratio"] == 2.0
    assert (
        found["speedup_vs_trl"] == 3.0
        and found["memory_vs_trl"] == 50.0
        and found["memory_vs_naive"] == 200.0
    )
    assert found["extra_mb"] == 2.0 and found["ratio_bf16"] == 1.0
    assert found["why"]["liger_jsd"] == "Liger runs on CUDA only"
    assert found["exponent_t"] is None and "scaling" not in found


def test_the_limit_is_the_fastest_tile(clock, monkeypatch):
    monkeypatch.setattr(signals, "TILES", ((2, 16), (8, 64), (4, 32)))
    found = bench_signals(**TINY, peers="none", memory=False)
    assert found["best_tile"] == "8x64" and found["tiles"] == {"2x16": 4.0, "8x64": 1.0, "4x32": 4.0}
    assert found["competitors"]["bare"]["ratio"] == 1.0
    assert set(found["competitors"]) == {"bare", "eager"}


def test_the_limit_is_timed_as_often_as_what_is_measured_against_it(monkeypatch):
    calls = []

    def interleaved(runs, repeats, *rest):
        calls.append((list(runs), repeats))
        return {name: [1.0] * repeats for name in runs}

    monkeypatch.setattr(signals, "interleaved", interleaved)
    bench_signals(**TINY | {"repeats": 5}, peers="none", memory=False, scaling=True)
    (tiles, tries), (rivals, repeats), (close, more), *scaling = calls
    assert all(name.startswith("bare ") for name in tiles) and tries == signals.TRIES
    assert {"bare", "eager"} <= set(rivals) and repeats == 5
    assert close == ["bare", "eager"] and more == (signals.OFTEN - 1) * 5, (
        "a few per cent need more than peers"
    )
    assert [times for _, times in scaling] == [signals.TRIES] * 2


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_errors_are_those_against_float64_of_the_same_operands(dtype):
    found = bench_signals(**TINY, dtype=dtype, peers="none", memory=False)
    assert 0 < found["max_error_kl"] < 1e-5 and 0 < found["max_error_entropy"] < 1e-5
    assert found["competitors"]["eager"]["least_kl"] >= 0
    assert all(0 < error < 1e-5 for error in found["error_of_products"].values())
    assert found["tile"] == "8x64"
    assert found["ratio_bf16"] > 0 and found["checked_tokens"] == 8 and found["extra_mb"] is None


def test_scaling_spans_sixteen_fold_and_fits_the_exponents(clock):
    found = bench_signals(**TINY, scaling=True, memory=False)
    tokens = [size["tokens"] for size in found["scaling"]["t"]["sizes"]]
    vocab = [size["vocab"] for size in found["scaling"]["v"]["sizes"]]
    assert tokens == [2, 4, 8, 16, 32] and vocab == [4, 8, 16, 32, 64]
    assert found["exponent_t"] == found["exponent_v"] == 1.0
    lines = found["scaling"]["t"]["competitors"]
    assert [len(line["seconds"]) for line in lines.values()] == [5] * len(lines)
    assert lines["eager"]["exponent"] == 1.0


def test_a_peer_that_fails_is_left_out_with_its_reason_and_ours_is_not_hidden(monkeypatch):
    def broken(found):
        raise RuntimeError("no kernel\nand more")

    monkeypatch.setitem(COMPETITORS, "naive", Competitor(label="x", gives=("kl",), heads=2, run=broken))
    assert bench_signals(**TINY, memory=False)["why"]["naive"] == "no kernel"
    monkeypatch.setitem(COMPETITORS, "eager", Competitor(label="x", gives=("kl",), heads=2, run=broken))
    with pytest.raises(RuntimeError, match="no kernel"):
        bench_signals(**TINY, memory=False)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dtype": "float16"}, "dtype: 'float16' is not one of float32, bfloat16"),
        ({"repeats": 0}, "repeats: 0; give 1 or more"),
        ({"tokens": 0}, "tokens: 0; give 1 or more"),
        ({"vocab": 8, "scaling": True}, "too few to be parted into 16"),
    ],
)
def test_bad_sizes_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        bench_signals(**(TINY | change))


def test_a_gpu_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="torch sees no GPU"):
        bench_signals(**TINY, device="cuda")


@PEAKS
def test_the_fresh_process_measures_what_full_logits_hold():
    # Two float32 logits of 512 x 4096 are 16 MiB; the log-softmaxes beside them make it more.
    found = fresh_peak("naive", tokens=512, hidden=4, vocab=4096)
    assert 24 < found["extra_mb"] < 64


@PEAKS
def test_the_measured_part_gives_reasons_and_numbers():
    spec = {"tokens": 300, "hidden": 8, "vocab": 2000, "dtype": "float32", "device": "cpu"}
    assert measured({"name": "liger_jsd", **spec}) == {"why": "Liger runs on CUDA only"}
    assert measured({"name": "eager", **spec})["extra_mb"] >= 0


def test_the_table_of_memory_has_every_size_and_every_reason(monkeypatch):
    def peak(name, tokens, hidden, vocab, dtype, device):
        return {"why": "too large"} if name == "naive" and tokens > 2 else {"extra_mb": float(tokens * vocab)}

    monkeypatch.setattr(memory, "fresh_peak", peak)
    found = bench_memory(tokens=[2, 3], vocab=[5], hidden=4)
    assert found["sizes"] == [{"tokens": 2, "vocab": 5}, {"tokens": 3, "vocab": 5}]
    assert found["competitors"]["eager"]["extra_mb"] == [10.0, 15.0]
    assert found["competitors"]["naive"]["extra_mb"] == [10.0, None]
    assert found["competitors"]["naive"]["why"] == "too large" and "why" not in found["competitors"]["eager"]


def test_a_process_that_dies_says_why(monkeypatch):
    monkeypatch.setattr(memory, "can_measure_peaks", lambda device: True)
    monkeypatch.setattr(memory.sys, "executable", "/bin/false")
    with pytest.raises(ValueError, match="bench memory: eager at 2 x 5 ended early: exit code 1"):
        fresh_peak("eager", 2, 3, 5)
