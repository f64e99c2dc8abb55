"""gear plan's arithmetic, by hand on an architecture that fits on paper."""

from dataclasses import replace

import pytest

from gear_rl.lab.plan import (
    ARCHITECTURES,
    ASSUMED,
    DEVICES,
    EXPERTS,
    GENERATING,
    GIB,
    UPDATING,
    Architecture,
    Device,
    Rates,
    Step,
    architecture,
    body_flop,
    memory,
    of_config,
    planned,
    ratios,
    seconds,
)

SMALL = Architecture(hidden=4, layers=2, heads=2, kv_heads=1, head_dim=3, ffn=5, vocab=11, tied=True)
# A layer: queries 4 x 6, output 6 x 4, keys and values 2 x 4 x 3, gate, up and down 3 x 4 x 5 = 132 weights.
FULL = Rates(forward=1, train=1, head=1, decode=1)
UNIT = Device(flops=1.0, bandwidth=1e30, memory_gib=1)


def test_the_weights_by_hand():
    assert (SMALL.body, SMALL.head, SMALL.params) == (264, 44, 308)
    assert replace(SMALL, tied=False).params == 352


def test_the_operations_of_a_forward_by_hand():
    # 7 tokens: 2 x 264 each for the weights, 4 x 2 layers x 6 for each of 3.5 keys; 2 x 44 for the head.
    assert SMALL.body_flop(7, 3.5) == 7 * (528 + 48 * 3.5)
    assert SMALL.head_flop(7) == 7 * 88
    assert body_flop(SMALL, 2, prompt=3, tokens=4) == 2 * SMALL.body_flop(7, 3.5)
    assert SMALL.cache_bytes(7) == 7 * 2 * 2 * 3 * 2


@pytest.mark.parametrize(
    ("name", "billions", "without_embedding"),
    [
        ("Qwen/Qwen3-0.6B", 0.6, 0.44),
        ("Qwen/Qwen3-1.7B", 1.7, 1.4),
        ("Qwen/Qwen3-4B", 4.0, 3.6),
        ("Qwen/Qwen3-8B", 8.2, 6.95),
        ("Qwen/Qwen2.5-0.5B", 0.49, 0.36),
        ("Qwen/Qwen2.5-1.5B", 1.54, 1.31),
        ("Qwen/Qwen2.5-3B", 3.09, 2.77),
        ("Qwen/Qwen2.5-7B", 7.61, 6.53),
    ],
)
def test_the_table_has_the_published_sizes(name, billions, without_embedding):
    found = ARCHITECTURES[name]
    assert found.params / 1e9 == pytest.approx(billions, rel=0.025)
    assert found.body / 1e9 == pytest.approx(without_embedding, rel=0.015)


def test_the_parts_of_a_step_by_hand():
    step = Step(
        prompts=3,
        group=2,
        prompt=5,
        teacher_prompt=7,
        tokens=4,
        concurrency=3,
        checkpointing=False,
        student_pass=True,
    )
    parts = seconds(SMALL, step, UNIT, FULL)
    layers = 6 * SMALL.body_flop(9, 4.5)
    head = 6 * 4 * 88
    assert parts["old_logprob"] == parts["student"] == layers + head
    assert parts["update"] == 3 * layers + 4 * head
    assert parts["teacher"] == 6 * SMALL.body_flop(11, 5.5) and parts["signals"] == head
    # Two batches of 3, 4 tokens each with 7 keys on average, after the prompts, once per group.
    assert parts["generation"] == 3 * SMALL.body_flop(5, 2.5) + 2 * 4 * (SMALL.body_flop(3, 7) + 3 * 88)


def test_generation_waits_for_the_memory_where_that_is_slower():
    step = Step(prompts=1, group=2, prompt=5, tokens=4, concurrency=8)
    parts = seconds(SMALL, step, Device(flops=1e30, bandwidth=10.0, memory_gib=1), replace(FULL, decode=0.5))
    read = 2 * (264 + 44) + SMALL.cache_bytes(2 * 7)
    assert parts["generation"] == pytest.approx(4 * read / 5)
    wide = Device(flops=1e30, bandwidth=10.0, memory_gib=1, weight_bytes=4)
    assert seconds(SMALL, step, wide, FULL)["generation"] == pytest.approx(4 * 2 * read / 10)


def test_what_each_choice_changes():
    step = Step(prompts=4, group=2, prompt=5, teacher_prompt=7, tokens=4)
    plain = seconds(SMALL, step, UNIT, FULL)

    def changed(**changes):
        other = seconds(SMALL, replace(step, **changes), UNIT, FULL)
        return {name: other[name] - value for name, value in plain.items() if other[name] != value}

    layers = 8 * SMALL.body_flop(9, 4.5)
    assert changed(checkpointing=False) == {"update": -layers}
    assert changed(old_logprob=False) == {"old_logprob": -(layers + 8 * 4 * 88)}
    assert changed(student_pass=True) == {"student": layers + 8 * 4 * 88}
    assert changed(share_prompt=True) == {"teacher": -4 * SMALL.body_flop(7, 3.5)}
    assert changed(prefill_each=True) == {"generation": 4 * SMALL.body_flop(5, 2.5)}
    halves = seconds(SMALL, replace(step, gpus=2), UNIT, FULL)
    assert all(halves[name] == pytest.approx(value / 2) for name, value in plain.items())


def test_rates_divide_the_parts_they_name():
    step = Step(student_pass=True)
    plain, model = seconds(SMALL, step, UNIT, FULL), SMALL
    slow = seconds(model, step, UNIT, replace(FULL, forward=0.5))
    assert slow["teacher"] == 2 * plain["teacher"] and slow["signals"] == plain["signals"]
    assert seconds(model, step, UNIT, replace(FULL, head=0.5))["signals"] == 2 * plain["signals"]
    n = step.completions * step.tokens
    trained = seconds(model, step, UNIT, replace(FULL, train=0.5))["update"]
    assert trained - plain["update"] == pytest.approx(plain["update"] - 4 * model.head_flop(n))


def test_the_ratios_of_the_design_notes_come_back():
    """One H200, Qwen3-4B, 256 completions of 8192 tokens, under the same assumptions."""
    found = planned("Qwen/Qwen3-4B", ARCHITECTURES["Qwen/Qwen3-4B"], "h200", Step())
    ratio = [round(each["ratio"], 3) for each in found["designs"].values()]
    assert ratio[0] == ratio[1] and ratio[1:] == pytest.approx([1.071, 1.064, 1.075, 1.141], abs=1.5e-3)
    low, high = found["range"]
    assert low < ratio[0] < high
    assert found["rates_are"].startswith("assumed")


def test_the_ratio_counts_what_gear_adds_and_nothing_else():
    parts = {
        "generation": 5.0,
        "old_logprob": 1.0,
        "update": 4.0,
        "teacher": 1.0,
        "signals": 0.5,
        "student": 0.5,
    }
    assert ratios(parts) == {"grpo": 10.0, "gear": 12.0, "ratio": 1.2, "ratio_without_generation": 1.4}


def test_memory_by_hand():
    step = Step(prompts=2, group=2, prompt=5, tokens=4, gpus=2, micro_batch=3, concurrency=9)
    held = {name: value * GIB for name, value in memory(SMALL, step).items()}
    assert held["weights, gradients, optimizer"] == pytest.approx(16 * 308 / 2)
    assert held["generation: weights"] == pytest.approx(2 * 308)
    assert held["generation: cache"] == pytest.approx(2 * 9 * 24)
    inner = 2 * 3 * (2 + 1) + 3 * 5 + 8 * 4
    assert held["activations"] == pytest.approx(2 * 27 * (2 * 4 + inner))
    kept = memory(SMALL, replace(step, checkpointing=False))
    assert kept["activations"] * GIB == pytest.approx(2 * 27 * (2 * 4 + 2 * inner))
    copied = memory(SMALL, replace(step, teacher="copy"))
    assert (copied["gear"] * GIB - held["gear"]) == pytest.approx(308, abs=1e-3)
    tiles = memory(SMALL, replace(step, micro_batch=1))["gear"] * GIB
    assert held["gear"] - tiles == pytest.approx(2 * 2 * 4 * 4, abs=1e-3)


def test_the_fullest_moments_add_up():
    found = planned("x", SMALL, "h100", Step(prompts=2, group=2, teacher="copy"))
    held, fullest = found["memory_gib"], found["fullest_gib"]
    assert fullest["generation"] == pytest.approx(sum(held[name] for name in GENERATING), abs=0.06)
    assert fullest["update, GEAR"] == pytest.approx(sum(held[name] for name in (*UPDATING, "gear")), abs=0.06)
    assert fullest["there"] == pytest.approx(80e9 / GIB, abs=0.06)
    assert set(held) == {*GENERATING, *UPDATING, "gear"}


def test_a_local_folder_is_read(tmp_path):
    from transformers import Qwen3Config

    Qwen3Config(
        hidden_size=4, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, head_dim=3,
        intermediate_size=5, vocab_size=11, tie_word_embeddings=True,
    ).save_pretrained(tmp_path)  # fmt: skip
    assert architecture(str(tmp_path)) == SMALL
    assert architecture("Qwen3-4B") == architecture("Qwen/Qwen3-4B")


def test_what_is_no_dense_decoder_is_refused(tmp_path):
    from transformers import PretrainedConfig, Qwen3MoeConfig

    for config in (Qwen3MoeConfig(), *(PretrainedConfig(**{name: 8}) for name in EXPERTS)):
        with pytest.raises(ValueError, match="has experts; the plan knows dense decoders only"):
            of_config(config, "moe")
    with pytest.raises(ValueError, match="no decoder that the plan knows"):
        of_config(PretrainedConfig(), "bare")
    with pytest.raises(
        ValueError, match=r"no folder with a config\.json and not in the table .* give the folder"
    ):
        architecture(str(tmp_path))


@pytest.mark.parametrize(
    "field", ["prompts", "group", "prompt", "teacher_prompt", "tokens", "gpus", "micro_batch"]
)
def test_sizes_below_one_are_refused(field):
    with pytest.raises(ValueError, match=f"{field}: 0; give 1 or more"):
        Step(**{field: 0})


def test_an_unknown_gpu_and_a_share_of_nothing_are_refused():
    with pytest.raises(ValueError, match="gpu: 'tpu' is not one of a100, h100, h200"):
        planned("x", SMALL, "tpu", Step())
    with pytest.raises(ValueError, match="train: 0 is no share"):
        Rates(train=0)


def test_the_assumptions_are_the_documented_ones():
    assert (ASSUMED.forward, ASSUMED.train, ASSUMED.head, ASSUMED.decode) == (0.5, 0.4, 0.7, 0.7)
    assert DEVICES["h200"].flops == 989e12 and DEVICES["h200"].bandwidth == 4.8e12
