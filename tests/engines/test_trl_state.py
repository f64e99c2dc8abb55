"""What a rollout, a context or an evaluation must leave as it was."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import bootstrap
from transformers import TrainerCallback

from engines import tiny
from engines.desks import Store
from engines.scripted import END, Desk, Seen, call, scripted, unpadded
from gear_rl import Gear, GEARConfig, GEARTrainer, Uniform
from gear_rl.credit import step
from gear_rl.credit.config import CreditConfig
from gear_rl.credit.contexts import Contexts, contexts_of
from gear_rl.engines.trl.evaluation import RESAMPLES, interval
from gear_rl.records import read_records
from support.batches import PlainEngine, batch_of


@pytest.fixture(scope="module")
def roomy(tmp_path_factory):
    return tiny.save(tmp_path_factory.mktemp("roomy"))


def bare():
    return tiny.rows().remove_columns(["privileged_context", "answer"])


def settings(folder, **changes):
    return tiny.settings(
        folder,
        record_file=str(folder / "records.jsonl"),
        max_completion_length=900,
        max_steps=1,
        gradient_accumulation_steps=1,
        **changes,
    )


def test_half_surrogates_lists_and_names_do_not_end_the_run(roomy, tmp_path):
    scripts = [
        [call("echo", '{"text": "a\\ud83d"}'), f"done{END}"],
        [call("no\\udc00body"), f"done {END}"],
        [call("names"), f"done.{END}"],
        [call("like_an_error"), f"no{END}"],
    ]
    trainer = scripted(
        roomy, bare(), settings(tmp_path), scripts, credit=Uniform(), environment_factory=Store
    )
    trainer.train()
    records = list(read_records(tmp_path / "records.jsonl"))
    assert [record.tools for record in records] == [
        {"calls": 1},
        {"calls": 1, "unknown": 1},
        {"calls": 1},
        {"calls": 1},
    ]
    texts = ["".join(record.tokens) for record in records]
    assert "\na?\n" in texts[0]
    assert "['a', 'b']" in texts[2]
    assert [record.reward for record in records] == [5.0] * 4


def test_feedback_that_a_reward_function_logs_is_told_to_failures(roomy, tmp_path, monkeypatch):
    told = []
    prompts = step.teacher_prompts

    def watched(batch, engine, config, contexts):
        told.append(list(contexts))
        return prompts(batch, engine, config, contexts)

    monkeypatch.setattr("gear_rl.credit.step.teacher_prompts", watched)
    values: list[Any] = ["a<|im_end|>", {"line": 3}, None, "won"]

    def judge(completions, log_extra, **_):
        log_extra("feedback", values)
        log_extra("other", ["x"] * len(completions))
        return [0.0, 0.0, 0.0, 1.0]

    def trainer():
        return scripted(
            roomy,
            bare(),
            settings(tmp_path, privileged_sources=["feedback"], reward_weights=[0.5], success_reward=0.5),
            [[f"{word}{END}"] for word in ("one", "two", "three", "four")],
            credit=Gear(),
            reward_funcs=judge,
            environment_factory=None,
        )

    trainer().train()
    assert told == [["a< |im_end|>", '{"line": 3}', None, None]]
    records = list(read_records(tmp_path / "records.jsonl"))
    assert [record.reward for record in records] == [0.0, 0.0, 0.0, 0.5]
    values.pop()
    with pytest.raises(ValueError, match="3 values for 4 completions; log one for each"):
        trainer().train()


def test_the_teachers_template_has_arguments_of_its_own(roomy, tmp_path, monkeypatch):
    seen = Seen(monkeypatch)
    student, teacher = {"enable_thinking": True}, {"enable_thinking": False}
    changes = {
        "chat_template_kwargs": student,
        "teacher_chat_template_kwargs": teacher,
        "student_pass": "own",
    }
    scripts = [[call("look", '{"place": "a"}'), f"done{END}"], [f"two{END}"], [f"three{END}"], [f"four{END}"]]
    trainer = scripted(
        roomy, bare(), settings(tmp_path, **changes), scripts, credit=Gear(), environment_factory=Desk
    )
    trainer.train()
    [(_, shown, told)] = seen.calls
    thought = "<think>\n\n</think>\n\n"
    decode = trainer.processing_class.decode
    assert all(decode(ids).endswith(thought) for ids in unpadded(told.ids_BP, told.attention_BP))
    assert not any(thought in decode(ids) for ids in unpadded(shown.ids_BP, shown.attention_BP))
    assert trainer.chat_template_kwargs == student


class Letters:
    """A tokenizer of four letters and an end of text."""

    pad_token_id, all_special_tokens = 0, ("<e>",)

    def decode(self, ids, **_):
        return "".join("abcd"[i] for i in ids) + "<e>"

    def __call__(self, text, **_):
        return {"input_ids": ["abcd".index(letter) for letter in text]}


def contexts_of_process(index: int, **settings: Any) -> tuple[Any, Any]:
    """What the second of two processes has, each of which holds one group of two."""
    held = [[("a", 1.0), ("b", 0.0)], [("c", 0.0), ("d", 0.25)]]
    config = CreditConfig(**settings)

    def contexts(rank: int, gather: Any) -> Contexts:
        batch = batch_of(
            torch.arange(4).view(2, 2)[rank][:, None],
            rows=[{"answer": f"answer {rank}"}] * 2,
            rewards=[reward for _, reward in held[rank]],
            group=[rank] * 2,
            first=2 * rank,
            num_rollouts=4,
        )
        engine = PlainEngine(Letters())
        engine.gather_objects = gather
        return contexts_of(batch, engine, config, None)

    gathered: dict[int, list[Any]] = {0: [], 1: []}
    for rank in (0, 1):  # first what each has to say, in the order in which it is gathered
        contexts(rank, lambda local, rank=rank: gathered[rank].append(local) or local * 2)
    calls = iter(zip(*gathered.values(), strict=True))

    def gather(local: list[Any]) -> list[Any]:
        first, second = next(calls)
        assert local == (first, second)[index]
        return [*first, *second]

    own = contexts(index, gather)
    pairs = [
        None if text is None else (name, text) for name, text in zip(own.sources, own.texts, strict=True)
    ]
    return pairs, own.wrong


@pytest.mark.parametrize("index", [0, 1])
def test_a_contrast_with_another_group_finds_it_in_another_process(index):
    found, wrong = contexts_of_process(
        index, privileged_sources=["row"], teacher_contrast="shuffled", success_reward=1.0
    )
    assert found == [("answer", f"answer {index}")] * 2
    assert wrong == [f"answer {1 - index}"] * 2


@pytest.mark.parametrize("index", [0, 1])
def test_siblings_and_failures_keep_their_places_over_processes(index):
    found, wrong = contexts_of_process(
        index, privileged_sources=["sibling"], teacher_contrast="sibling", success_reward=0.25
    )
    told = [[None, ("sibling", "a< e>")], [("sibling", "d< e>"), None]]
    assert found == told[index]
    assert wrong == [["b< e>", None], [None, "c< e>"]][index]


def test_no_environment_is_called_for_a_context_that_nobody_wants():
    for sources, texts in ((["row"], [None]), (["row", "environment"], ["of the class"])):
        batch = batch_of(torch.ones(1, 1).long(), environments=[Store()])
        config = CreditConfig(privileged_sources=sources, teacher_contrast="none", success_reward=1.0)
        assert contexts_of(batch, PlainEngine(Letters()), config, None).texts == texts


@pytest.mark.parametrize("vllm", [False, True])
def test_solving_leaves_everything_as_it_was_also_after_an_error(tiny_model, tmp_path, vllm):
    changes = {"num_generations_eval": 2, "per_device_eval_batch_size": 4}
    trainer = GEARTrainer(
        tiny_model, tiny.vowels, GEARConfig(**tiny.settings(tmp_path, **changes)), tiny.rows(), credit=Gear()
    )
    seen = []
    if vllm:
        trainer.vllm_generation = SimpleNamespace(temperature=0.9)
    trainer._logs["prompt"].append("kept")
    fail = False

    def judge(completions, **_):
        seen.append(
            (
                trainer.vllm_generation.temperature == 0.0
                if vllm
                else not trainer.generation_config.do_sample,
                trainer.num_generations_eval,
                trainer.model.training,
            )
        )
        if fail:
            raise LookupError
        return [1.0] * len(completions)

    trainer.reward_funcs[:] = [judge]
    for fail in (False, True):
        for greedy in (False, True):
            trainer.model.train()
            before = trainer.generation_config.to_dict()
            if fail:
                with pytest.raises(LookupError):
                    trainer.solve(list(tiny.rows(2)), greedy=greedy)
            else:
                assert trainer.solve(list(tiny.rows(2)), greedy=greedy) == [1.0, 1.0]
            assert seen[-1] == (greedy, 1, False)
            assert not vllm or trainer.vllm_generation.temperature == 0.9
            assert trainer.generation_config.do_sample
            assert trainer.model.training
            assert trainer.generation_config.to_dict() == before
            assert trainer.num_generations_eval == 2
            assert list(trainer._logs["prompt"]) == ["kept"]


def test_evaluation_asks_no_environment_for_its_secret(roomy, tmp_path):
    asked = []

    class Quiet(Store):
        def privileged_context(self) -> str:
            asked.append(1)
            return "secret"

    scripts = [[f"{word}{END}"] for word in ("one", "two", "three", "four")]
    trainer = scripted(
        roomy,
        bare(),
        settings(tmp_path, num_generations_eval=2, per_device_eval_batch_size=4),
        scripts,
        credit=Gear(),
        environment_factory=Quiet,
        eval_dataset=bare().select(range(3)),
    )
    seen: list[dict[str, float]] = []

    class Watch(TrainerCallback):
        def on_evaluate(self, args, state, control, metrics=None, **kw):
            seen.append(dict(metrics or {}))

    trainer.add_callback(Watch())
    metrics = trainer.evaluate()
    assert asked == []
    assert {"eval_pass@1", "eval_pass@2_low", "eval_greedy"} <= seen[0].keys(), (
        "early stopping may go by them"
    )
    assert len(trainer.state.log_history) == 1, "what is logged twice writes the completions' table twice"
    assert metrics["eval_problems"] == 3.0
    assert metrics["eval_pass@1"] == metrics["eval_greedy"] == 1.0
    assert trainer.rollouts.evaluated is None
    trainer.train()
    assert len(asked) == 4


def test_the_interval_of_many_problems_is_drawn_in_batches_that_change_nothing():
    values = [1.0, 0.5, 0.0] * 1000
    whole = bootstrap(
        (np.asarray(values),), np.mean, n_resamples=RESAMPLES, method="percentile", rng=0
    ).confidence_interval
    assert 4_000_000 // len(values) < RESAMPLES, "else all are drawn at once"
    assert interval(values) == (whole.low, whole.high)


def test_a_training_that_learns_does_not_notice_the_evaluation(tiny_model, tmp_path):
    runs = []
    for often in ("no", "steps"):
        changes = {"num_generations_eval": 2, "per_device_eval_batch_size": 4, "max_steps": 3}
        made = tiny.settings(tmp_path / often, eval_strategy=often, eval_steps=1, **changes)
        rows = tiny.rows()
        torch.manual_seed(0)
        trainer = GEARTrainer(
            tiny_model, tiny.vowels, GEARConfig(**made), rows, rows.select(range(3)), credit=Gear()
        )
        before = [parameter.detach().clone() for parameter in trainer.model.parameters()]
        trainer.train()
        after = list(trainer.model.parameters())
        assert any(not torch.equal(a, b) for a, b in zip(before, after, strict=True)), "else nothing is shown"
        history = trainer.state.log_history
        runs.append((after, [(e["loss"], e["reward"]) for e in history if "loss" in e]))
    assert len({reward for _, reward in runs[0][1]}) > 1
    assert runs[0][1] == runs[1][1]
    assert all(torch.equal(a, b) for a, b in zip(runs[0][0], runs[1][0], strict=True))
