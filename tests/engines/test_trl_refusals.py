"""What is refused: each setting that cannot train, or would train wrongly, is one error that names it."""

import math
import re
import subprocess
import sys
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
from trl import GRPOConfig

from engines import tiny
from engines.probing import Probe
from engines.test_trl import two_turns
from gear_rl import Gear, GEARConfig, GEARTrainer, Uniform
from gear_rl.engines.trl.config import check_setup, check_trl
from gear_rl.methods import Crpo, Gigpo, Grail, Igpo, MtGrpo, OarG, OarP, Opsd, Rlcsd, Rlsd, Sdpg, Sdpo, Shear
from gear_rl.types import Credit


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"loss_type": "gmpo"}, "loss_type: 'gmpo' was never run with one advantage per token"),
        ({"teacher_model_kind": "old"}, "teacher_model_kind: 'old' is not one of live, base, ema, sync"),
        ({"teacher_prompt": "append"}, "teacher_prompt: 'append' is not one of render, splice"),
        ({"teacher_sync_steps": 0}, "teacher_sync_steps: 0"),
        ({"temperature": 0.0}, "temperature: 0.0"),
        ({"tool_time_limit": 0}, "tool_time_limit: 0; give seconds, or None"),
        ({"tool_max_chars": 0}, "tool_max_chars: 0; give 1 or more, or None"),
        ({"teacher_check_steps": -1}, "teacher_check_steps: -1; give 0 or more"),
        ({"student_pass": "shared"}, "student_pass: 'shared' is not one of auto, own"),
        ({"non_finite_step": "go"}, "non_finite_step: 'go' is not one of stop, skip"),
        ({"answer_pattern": "("}, r"answer_pattern: '\(' is not a regular expression"),
        ({"answer_pattern": r"(\w+\s*)+"}, "answer_pattern: .* repeats what is itself repeated"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_a_setting_out_of_its_range(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        GEARConfig(**tiny.settings(tmp_path, **changes))


@dataclass(frozen=True, slots=True, kw_only=True)
class Own:
    """A user's method."""

    name: ClassVar[str] = "own"
    source: ClassVar[str] = "a test"
    needs: ClassVar[tuple[str, ...]] = ("divergence",)

    engine_settings: Any

    def __call__(self, advantage_B, signals) -> Credit:
        return Uniform()(advantage_B, signals)


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
        (Gear(), {}, {"rollout_func": two_turns}, "teacher_prompt: 'render' cannot repeat the prompt"),
        (Gear(), {"teacher_model": "x", "teacher_model_kind": "ema"}, {}, "'ema' names the teacher's weights"),
        (Opsd(), {"teacher_model": "x"}, {}, "teacher_model: credit 'opsd' distils its teacher"),
        (Own(engine_settings={"teacher_kind": "sync"}), {}, {}, "'own' has 'teacher_kind', .* choose from"),
        (Own(engine_settings={"teacher_model_kind": "no"}), {}, {}, "'own': teacher_model_kind: 'no' is not one"),
        (Own(engine_settings=["teacher_model_kind"]), {}, {}, "engine_settings of 'own' is .* give a mapping"),
        (Gear(), {"importance_sampling_level": "sequence"}, {}, "token credit of 'gear' would be lost; set"),
        (Gigpo(), {"loss_type": "vespo"}, {}, "loss_type: 'vespo' weighs a completion by the sign of its advan"),
        (Gigpo(), {"off_policy_mask_threshold": 0.1}, {}, "off_policy_mask_threshold: 0.1 drops a completion by"),
        (Gear, {}, {}, r"credit: <class .*Gear'> is not a method; give an object such as"),
        ("gear", {}, {}, "credit: 'gear' is not a method"),
    ],
)  # fmt: skip
def test_before_anything_is_loaded(tmp_path, credit, settings, given, message):
    args = GEARConfig(**tiny.settings(tmp_path, **settings))
    with pytest.raises(ValueError, match=message):
        GEARTrainer(
            "no-such-model", tiny.vowels, args, **{"train_dataset": tiny.rows(), **given}, credit=credit
        )


def test_a_method_without_teacher_needs_no_context_and_a_plain_config_is_named(tmp_path):
    settings = tiny.settings(tmp_path)
    with pytest.raises(OSError, match="huggingface"):
        GEARTrainer("no-such-model", tiny.vowels, GEARConfig(**settings), BARE, credit=Uniform())
    with pytest.raises(ValueError, match="args: GRPOConfig has no settings of the credit step; give a GEAR"):
        GEARTrainer("no-such-model", tiny.vowels, GRPOConfig(**settings), tiny.rows(), credit=Gear())


TORN = {"per_device_train_batch_size": 3, "steps_per_generation": 2}
READS = Probe(needs=("reference_logprob",))
SYNCED = {"sync_ref_model": True, "beta": 0.1, "save_strategy": "steps"}


@pytest.mark.parametrize(
    ("credit", "settings", "setup", "message"),
    [
        (Probe(needs=("transport_distance",)), TORN, {}, r"size: 6 completions per .* \(4\), but 'probe'"),
        (Probe(needs=("transport_distance",)), TORN, {"num_generations": 3}, None),
        (Probe(needs=("group_B", "reward_B")), TORN, {}, None),
        (READS, {}, {"sharding": "DEEPSPEED"}, "'probe' needs reference_logprob.* never run under DEEPSPEED"),
        (READS, {}, {"sharding": "DEEPSPEED", "peft": True}, None),
        (Probe(), {}, {"sharding": "DEEPSPEED"}, None),
        (READS, {}, {"sharding": "FSDP"}, None),
        (Probe(), {}, {"sharding": "FSDP", "fsdp_version": 1}, "fsdp_version: 1 hides the head's weights"),
        (Sdpo(), {}, {"sharding": "FSDP"}, "'sdpo' distils, .* never run with FSDP"),
        (Sdpo(), {"teacher_model_kind": "live"}, {"sharding": "DEEPSPEED", "zero_stage": 3}, "'sdpo' distils"),
        (Sdpo(), {"teacher_model_kind": "live"}, {"sharding": "DEEPSPEED", "zero_stage": 2}, None),
        (Sdpo(), {"use_liger_kernel": True}, {}, "'sdpo' distils, .* never run with FSDP"),
        (Sdpo(), {}, {"sharding": "MULTI_CPU"}, None),
        (Gear(), {"teacher_model": "x"}, {"sharding": "FSDP"}, "teacher_model: 'x' is whole on every process"),
        (Gear(), {"teacher_model": "x"}, {"sharding": "MULTI_GPU"}, None),
        (Rlsd(), {}, {"sharding": "DEEPSPEED"}, "teacher_model_kind: 'sync' keeps a copy"),
        (Rlsd(), {"teacher_model_kind": "live"}, {"sharding": "DEEPSPEED"}, None),
        (Gear(), {}, {"sharding": "DEEPSPEED"}, "teacher_model_kind: 'base' keeps a copy"),
        (Gear(), {}, {"sharding": "DEEPSPEED", "peft": True}, None),
        (Gear(), SYNCED, {"sharding": "FSDP"}, "sync_ref_model: a checkpoint holds a whole copy"),
        (Gear(), SYNCED, {"sharding": "NO"}, None),
        *((credit, {}, {"images": True}, "images cannot be") for credit in (Igpo(), Opsd(), Sdpg(), Rlcsd())),
        *((credit, {}, {"images": True}, None) for credit in (Crpo(), MtGrpo(), Opsd(strength=0.0))),
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


def test_the_trainer_reports_its_own_sharding(tiny_model, tmp_path, monkeypatch):
    monkeypatch.setattr(GEARTrainer, "sharding", "DEEPSPEED")
    args = GEARConfig(**tiny.settings(tmp_path))
    with pytest.raises(ValueError, match="teacher_model_kind: 'sync' keeps a copy"):
        GEARTrainer(tiny_model, tiny.vowels, args, tiny.rows(), credit=Rlsd())


@pytest.mark.parametrize(
    ("method", "settings", "message"),
    [
        (Igpo, {"answer_template": "the answer"}, r"answer_template: 'the answer' lacks \{privileged_context\}"),
        (OarP, {"readout": "max"}, "readout: 'max' is not one of mean, last, joint"),
        (OarG, {"noise_std": math.nan}, "noise_std: nan"),
        (Grail, {"layer": "8"}, "layer: '8' is not one of input, first, middle, last"),
        (Gigpo, {"anchor_similarity": 95.0}, "anchor_similarity: 95.0; give more than 0 and at most 1"),
        (Shear, {"window_tokens": 20}, r"stride_tokens: 25 must be 1 to window_tokens \(20\)"),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("unchecked")
def test_a_methods_setting_of_its_signal(method, settings, message):
    with pytest.raises(ValueError, match=message):
        method(**settings)


# --- releases of TRL that were never run ------------------------------------------------------------------------

MESSAGE = "trl {} is not supported; install trl>=1.14,!=1.15.*,<1.17"
OLD = """
import sys, trl
trl.__version__, sys.argv = "1.13.0", ["gear", "train"]
from gear_rl.cli import main
main()
"""


@pytest.mark.parametrize("version", ["1.13.0", "1.15.0", "1.17.0.dev0", "2.0.0"])
def test_an_unsupported_trl_is_named_with_the_release_to_install(version):
    with pytest.raises(ImportError, match=re.escape(MESSAGE.format(version))):
        check_trl(version)


def test_the_command_names_the_release_to_install():
    done = subprocess.run([sys.executable, "-c", OLD], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.strip()) == (2, f"gear: {MESSAGE.format('1.13.0')}")
