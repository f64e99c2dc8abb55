"""The column ``tools``: each prompt shows its own row's functions, to the student and to the teacher."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from datasets import Dataset

from engines import tiny
from engines.running import history, trained, trainer_of
from engines.scripted import Scripted, call
from gear_rl import Gear, GEARConfig, GEARTrainer
from gear_rl.data.rewards.tool_calls import tool_call_reward
from gear_rl.engines.trl.rollouts import Rollouts
from gear_rl.records import read_records


def function(name, **types):
    properties = {key: {"type": kind, "description": ""} for key, kind in types.items()}
    parameters = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": name, "description": "", "parameters": parameters}}


FUNCTIONS = [[function("add", a="integer", b="integer")], [function("say", text="string")]]
CALLS = [call("add", '{"a": 1, "b": 2}'), call("say", '{"text": "hi"}')]


def rows(tools=FUNCTIONS):
    wanted = [[json.loads(text.split("\n")[1])] for text in CALLS]
    return Dataset.from_list(
        [
            {
                "prompt": [{"role": "user", "content": f"row {i}"}],
                "answer": f"do {i}",
                "calls": json.dumps(wanted[i]),
                "tools": tools[i],
            }
            for i in range(2)
        ]
    )


def make(folder, model, dataset, reward=tool_call_reward, **options):
    settings = tiny.settings(
        folder,
        record_file=str(folder / "records.jsonl"),
        per_device_train_batch_size=8,
        gradient_accumulation_steps=1,
        max_completion_length=80,
        max_steps=1,
    )
    trainer = Scripted(
        model, reward, GEARConfig(**settings), dataset, credit=Gear(onset_floor_nats=0.0), **options
    )
    trainer.scripts = [[CALLS[i % 2]] for i in range(8)]
    return trainer


@pytest.mark.parametrize("as_text", [False, True])
def test_each_prompt_shows_its_own_functions(tiny_model, tmp_path, as_text):
    given = [json.dumps(tools) for tools in FUNCTIONS] if as_text else FUNCTIONS
    trainer = make(tmp_path, tiny_model, rows(given))
    trainer.train()
    records = list(read_records(tmp_path / "records.jsonl"))
    template = trainer.processing_class.apply_chat_template
    for record, ids in zip(records, trainer.first_prompts, strict=True):
        own = int("row 1" in record.prompt)
        message = {"role": "user", "content": f"row {own}"}
        wanted = template([message], tools=FUNCTIONS[own], add_generation_prompt=True, return_dict=False)
        assert ids == wanted
        assert json.dumps(FUNCTIONS[own][0]) in record.teacher_prompt and f"do {own}" in record.teacher_prompt
        assert FUNCTIONS[1 - own][0]["function"]["name"] not in record.teacher_prompt
    assert {record.reward for record in records} == {0.0, 1.0}
    assert trainer.environment_factories is None


@pytest.mark.parametrize("equal", [True, False])
def test_the_rounding_of_equal_rewards_is_no_advantage(tiny_model, tmp_path, equal):
    def reward(completions, **_):
        return [0.3 if equal or i % 2 else 0.4 for i in range(len(completions))]

    trainer = make(tmp_path, tiny_model, rows(), reward=reward)
    rounding, seen, spread = torch.full((8,), 0.125), [], trainer._run_credit_step

    def rounded(output):
        seen.append(spread(output | {"advantages": rounding}))
        return output["advantages"]

    trainer._run_credit_step = rounded
    trainer.train()
    records = read_records(tmp_path / "records.jsonl")
    assert {record.advantage for record in records} == {0.0 if equal else 0.125}
    assert (seen[0] is rounding) == equal, "TRL's own advantages stay"


@pytest.mark.parametrize(
    ("aggregation", "advantages"),
    [
        ("sum_then_normalize", [[0, 0, 1, 1], [1, 1, 0, 0]]),
        ("normalize_then_sum", [[0, 0, 1, 1], [1, 1, 1, 1]]),
    ],
)
def test_each_process_has_its_own_groups_of_equal_rewards(aggregation, advantages):
    """The last group's sums are equal, the rewards behind them are not; one completion of the third has none."""
    none = torch.nan
    given = [[0.3, 0.0], [0.3, 0.0], [0.3, 0.0], [0.0, 0.0], [none, none], [0.3, 0.0], [0.1, 0.7], [0.7, 0.1]]
    for process in range(2):
        rollouts = Rollouts()
        rollouts.judge(torch.tensor(given), weights=torch.ones(2), num_tries=1)
        rollouts.prompts = rollouts.rows = rollouts.messages = [{}] * 4
        rollouts.ids = [np.array([5])] * 4  # as a rollout function may return them
        trainer = SimpleNamespace(
            accelerator=SimpleNamespace(process_index=process),
            args=SimpleNamespace(multi_objective_aggregation=aggregation),
            state=SimpleNamespace(global_step=0),
            eos_token_ids=[2],
            num_generations=2,
            tools=None,
        )
        ids = torch.tensor([[5]] * 4)
        names = ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask")
        output = dict.fromkeys(names, ids) | {"advantages": torch.ones(4)}
        assert rollouts.batch(trainer, output).advantage_B.tolist() == advantages[process]


def test_rows_that_a_function_makes_as_they_are_read_train(tiny_model, tmp_path):
    made = tiny.rows().rename_columns({"prompt": "given", "privileged_context": "told"})
    made.set_transform(lambda rows: rows | {"prompt": rows["given"], "privileged_context": rows["told"]})
    trainer = trained(tmp_path, tiny_model, Gear(), rows=made, max_steps=1)
    assert history(trainer, "gear/context/row") == [8.0]


def test_no_credit_is_assigned_in_an_evaluation_whatever_the_model_is_left_in(tiny_model, tmp_path):
    class Batching(GEARTrainer):
        """As TRL's continuous batching, which ends in training mode."""

        def _generate(self, *given, **more):
            output = super()._generate(*given, **more)
            self.model.train()
            return output

    trainer = trainer_of(tmp_path, tiny_model, Gear(), cls=Batching, max_steps=1)
    seen = []
    trainer.record_subscribers.append(seen.append)
    trainer.train()
    trainer.evaluate(tiny.rows(4))
    assert len(seen) == 1


def test_what_fails_in_a_rollout_function_is_not_called_the_templates(tiny_model, tmp_path):
    def down(prompts, trainer):
        raise RuntimeError("my server is down")

    settings = tiny.settings(tmp_path, teacher_prompt="splice", teacher_prompt_template=None)
    trainer = GEARTrainer(
        tiny_model, tiny.vowels, GEARConfig(**settings), tiny.rows(), credit=Gear(), rollout_func=down
    )
    trainer.processing_class.chat_template = None
    with pytest.raises(RuntimeError, match="my server is down"):
        trainer.train()


def test_a_column_that_no_prompt_shows_is_said(tiny_model, tmp_path, caplog):
    def add(a: int) -> int:
        """Add one.

        Args:
            a: A number.
        """
        return a + 1

    make(tmp_path, tiny_model, rows(), tools=[add])
    blank = tiny.tokenizer()
    blank.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    make(tmp_path, tiny_model, rows(), processing_class=blank)
    make(tmp_path, tiny_model, rows().map(lambda row: {"prompt": row["prompt"][0]["content"]}))
    for why in ("own tools and environments are shown", "has no place for them", "the prompts are text"):
        assert (
            caplog.text.count(f"column 'tools': the {'run' if 'own' in why else ''}") and why in caplog.text
        )
    with pytest.raises(ValueError, match="tools: 'calculator' is no list of functions"):
        make(tmp_path, tiny_model, rows(["calculator", "none"]))
