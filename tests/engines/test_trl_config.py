"""What is refused: each setting that cannot train, or would train wrongly, is one error that names it."""

import copy
import pickle
import re

import pytest
from peft import LoraConfig

from engines import tiny
from engines.probing import Probe
from engines.running import trainer_of
from gear_rl import Gear, GEARConfig, GEARTrainer, Uniform
from gear_rl.engines.trl.config import check_setup
from gear_rl.methods import Cast, Crpo, Gigpo, Igpo, MtGrpo, Opsd, Rlcsd, Rlsd, Sdpg, Sdpo


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"loss_type": "gmpo"}, "loss_type: 'gmpo' was never run with one advantage per token"),
        ({"teacher_model_kind": "old"}, "teacher_model_kind: 'old'; give live, base, ema or sync"),
        ({"success_reward": "high"}, "success_reward: 'high'; give a number, or None"),
        (
            {"privileged_sources": "row"},
            "privileged_sources: 'row'; give a list of texts, or None",
        ),
        ({"use_vllm": True, "vllm_mode": "colocated"}, "vllm_mode: 'colocated'; give colocate or server"),
        ({"tool_time_limit": 0}, "tool_time_limit: 0; give a number above 0, or None"),
        ({"answer_pattern": r"(\w+\s*)+"}, "answer_pattern: .* repeats what is itself repeated"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_a_setting_out_of_its_range(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        GEARConfig(**tiny.settings(tmp_path, **changes))


BARE = tiny.rows().remove_columns(["privileged_context", "answer"])
EMPTY = tiny.rows().from_list([{**row, "privileged_context": "", "answer": " "} for row in tiny.rows()])


@pytest.mark.parametrize(
    ("credit", "settings", "given", "message"),
    [
        (Gear(), {}, {"train_dataset": BARE}, "the columns are prompt, without any of privileged_context"),
        (Gear(), {"privileged_column": "gold"}, {}, "without 'gold'"),
        (Gear(), {}, {"train_dataset": EMPTY}, "all 16 rows of privileged_context, answer are empty"),
        (Gear(), {"privileged_sources": ["environment"]}, {}, "no environment has privileged_context"),
        (Gear(), {"teacher_contrast": "wrong"}, {}, "teacher_contrast: 'wrong' is neither 'sibling' nor 'shuf"),
        (Gear(), {}, {"rollout_func": dict}, "teacher_prompt: 'render' cannot repeat the prompt"),
        (Gear(), {"teacher_model": "x", "teacher_model_kind": "ema"}, {}, "'ema' names the teacher's weights"),
        (Opsd(), {"teacher_model": "x"}, {}, "teacher_model: credit 'opsd' distils its teacher"),
        (Cast(), {"teacher_model_kind": "live"}, {}, r"'live' with .* is the student itself; give base"),
        (Gear(), {"importance_sampling_level": "sequence"}, {}, "token credit of 'gear' would be lost; set"),
        (Opsd(sampled=True), {"loss_type": "vespo"}, {}, "loss_type: 'vespo' weighs a completion by the sign"),
        (Gigpo(), {"off_policy_mask_threshold": 0.1}, {}, "off_policy_mask_threshold: 0.1 drops a completion by"),
        (Gear, {}, {}, r"credit: <class .*Gear'> is no method; give a name, .* or in Python an object"),
    ],
)  # fmt: skip
def test_before_anything_is_loaded(tmp_path, credit, settings, given, message):
    args = GEARConfig(**tiny.settings(tmp_path, **settings))
    with pytest.raises(ValueError, match=message):
        GEARTrainer(
            "no-such-model", tiny.vowels, args, **{"train_dataset": tiny.rows(), **given}, credit=credit
        )


def test_an_adapter_on_the_head_is_refused_before_the_first_rollouts(tmp_path, tiny_model):
    lora = LoraConfig(r=2, target_modules=["q_proj"], modules_to_save=["lm_head"])
    with pytest.raises(ValueError, match="model: the head is wrapped by an adapter"):
        trainer_of(tmp_path, tiny_model, Gear(), peft=lora)
    trainer_of(tmp_path, tiny_model, Uniform(), peft=lora)


def test_a_method_without_teacher_needs_no_context(tmp_path):
    with pytest.raises(OSError, match="huggingface"):
        GEARTrainer(
            "no-such-model", tiny.vowels, GEARConfig(**tiny.settings(tmp_path)), BARE, credit=Uniform()
        )


def roles(*names):
    return [{"role": name, "content": f"{i} plus {i}"} for i, name in enumerate(names)]


TEMPLATED = tiny.tokenizer().apply_chat_template(roles("user"), tokenize=False, add_generation_prompt=True)


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        (
            [roles("user"), roles("system", "user")],
            "template refuses row 2, system, user: '0 plus 0' (no system",
        ),
        ([roles("user"), [{"role": "user", "content": TEMPLATED}]], "row 2, user: '<|im_start|>user"),
        ([TEMPLATED] * 2, "prompt: row 1, '<|im_start|>user"),
    ],
)
def test_prompts_that_are_refused_or_templated_are_named_before_the_first_rollout(tmp_path, prompts, message):
    def reward(completions, **_):
        raise AssertionError("a rollout was made")

    fast = tiny.tokenizer()
    refusal = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    fast.chat_template = refusal + fast.chat_template
    rows = tiny.rows().from_list([{"prompt": prompt, "answer": "4"} for prompt in prompts])
    args = GEARConfig(**tiny.settings(tmp_path, teacher_model_kind="live"))
    trainer = GEARTrainer(tiny.model(len(fast)), reward, args, rows, processing_class=fast, credit=Gear())
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        trainer.train()
    assert "\n" not in str(caught.value)
    if "refuses" in message:
        with pytest.raises(ValueError, match="template refuses prompt 2, system, user"):
            trainer.credit_engine().render(prompts, None)


TORN = {"per_device_train_batch_size": 3, "steps_per_generation": 2}
READS = Probe(needs=("reference_logprob",))
SYNCED = {"sync_ref_model": True, "beta": 0.1, "save_strategy": "steps"}
PUSHED = {"push_to_hub": True, "record_file": None}


@pytest.mark.parametrize(
    ("credit", "settings", "setup", "message"),
    [
        (Probe(needs=("transport_distance",)), TORN, {}, r"size: 6 completions per .* \(4\), but 'probe'"),
        (Probe(needs=("transport_distance",)), TORN, {"num_generations": 3}, None),
        (Probe(needs=("group_B", "reward_B")), TORN, {}, None),
        (READS, {}, {"sharding": "DEEPSPEED"}, "'probe' needs reference_logprob.* never run under DEEPSPEED"),
        (Probe(), {}, {"sharding": "FSDP", "fsdp_version": 1}, "fsdp_version: 1 hides the head's weights"),
        (Sdpo(), {}, {"sharding": "FSDP"}, "'sdpo' distils, .* never run with FSDP"),
        (Sdpo(), {"teacher_model_kind": "live"}, {"sharding": "DEEPSPEED", "zero_stage": 3}, "'sdpo' distils"),
        (Sdpo(), {"teacher_model_kind": "live"}, {"sharding": "DEEPSPEED", "zero_stage": 2}, None),
        (Sdpo(), {"use_liger_kernel": True}, {}, "'sdpo' distils, .* never run with FSDP"),
        (Sdpo(), {"torch_compile": True}, {}, "torch_compile: True hides the states that 'sdpo' distils from"),
        (Gear(), {"torch_compile": True}, {}, None),
        (Gear(), {"remove_unused_columns": True}, {}, "remove_unused_columns: True drops the columns"),
        (Gear(), {"push_to_hub": True, "record_file": "r.jsonl"}, {}, "record_file: 'r.jsonl' holds what"),
        (Gear(), {"push_to_hub": True, "record_file": "../r.jsonl"}, {}, None),
        (Crpo(), {"push_to_hub": True, "record_file": "r.jsonl"}, {}, None),
        (Opsd(), {**PUSHED, "hub_strategy": "checkpoint"}, {}, "hub_strategy: 'checkpoint' would publish the t"),
        (Gear(), {**PUSHED, "hub_strategy": "checkpoint"}, {}, None),
        (Gear(), {"teacher_model": "x"}, {"sharding": "FSDP"}, None),
        (Rlsd(), {}, {"sharding": "DEEPSPEED"}, "teacher_model_kind: 'sync' follows the weights"),
        (Gear(), {}, {"sharding": "DEEPSPEED"}, None),
        (READS, {}, {"sharding": "DEEPSPEED", "starts_as_base": True}, None),
        (Gear(), SYNCED, {"sharding": "FSDP"}, "sync_ref_model: a checkpoint holds a whole copy"),
        (Igpo(), {}, {"images": True}, "teacher's alone, and 'igpo' needs answer_confidence, a pass"),
        *((credit, {}, {"images": True}, None) for credit in (Crpo(), MtGrpo(), Opsd(), Sdpg(), Rlcsd())),
        (Gear(), {}, {"images": True, "sharding": "FSDP"}, "images with 'gear', which was never run under FSDP"),
        (Crpo(), {}, {"images": True, "sharding": "FSDP"}, None),
        (Gear(), {"teacher_model": "x"}, {"images": True}, "teacher_model: 'x' reads ids alone"),
        (Rlsd(), {"teacher_url": "http://x"}, {"images": True}, "teacher_url: 'http://x' reads ids alone"),
    ],
)  # fmt: skip
def test_once_trl_is_set_up(tmp_path, credit, settings, setup, message):
    args = GEARConfig(**tiny.settings(tmp_path)).resolved(credit)
    vars(args).update(settings)  # some are refused before by themselves
    given = {"num_generations": 4, **setup}
    if message is None:
        check_setup(credit, args, **given)
    else:
        with pytest.raises(ValueError, match=message):
            check_setup(credit, args, **given)


def test_a_misspelt_setting_of_python_has_the_command_s_hint():
    with pytest.raises(TypeError, match="max_step: no such setting; did you mean max_steps"):
        GEARConfig("out", use_cpu=True, max_step=3)  # pyright: ignore[reportCallIssue]
    config = GEARConfig("out", use_cpu=True, max_steps=3)
    assert pickle.loads(pickle.dumps(config)).max_steps == copy.copy(config).max_steps == 3
