"""Tasksets of verifiers.v1 as rows, reward and tools; skipped without the package."""

import asyncio

import pytest

from gear_rl.data.adapters.verifiers import TasksetReward, _messages, rows, tools


def test_messages_become_those_of_verifiers():
    call = {"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
    before = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "an example"}]
    after = [
        {"role": "assistant", "content": "", "tool_calls": [call, call]},
        {"role": "tool", "name": "add", "content": "2"},
        {"role": "tool", "name": "add", "content": "3"},
        {"role": "assistant", "content": "done"},
    ]
    found = list(_messages(before, after))
    assert [sampled for _, sampled in found] == [False, False, True, False, False, True]
    messages = [message for message, _ in found]
    assert messages[2]["tool_calls"] == [
        {"id": f"call_{i}", "name": "add", "arguments": '{"a": 1}'} for i in (0, 1)
    ]
    assert [messages[i]["tool_call_id"] for i in (3, 4)] == ["call_0", "call_1"]


@pytest.fixture
def vf():
    return pytest.importorskip("verifiers.v1")


@pytest.fixture
def taskset(vf):
    class Data(vf.TaskData):
        answer: str

    class Adder(vf.Toolset[vf.ToolsetConfig]):
        @vf.tool
        def add(self, a: int, b: int) -> int:
            """Add two numbers."""
            return a + b

        @vf.tool(name="less")
        async def subtract(self, a: int, b: int) -> int:
            return a - b

    class Sum(vf.Task[Data]):
        @classmethod
        def toolsets(cls, config):
            return [Adder(vf.ToolsetConfig())]

        @vf.reward(weight=2.0)
        async def right(self, trace) -> float:
            return float(trace.last_reply == self.data.answer)

        @vf.reward
        async def called(self, trace) -> float:
            return float(sum(len(m.tool_calls or []) for m in trace.assistant_messages))

    class Sums(vf.Taskset[Sum]):
        def load(self):
            for i in range(3):
                yield Sum(Data(prompt=f"{i}+1", system_prompt="Add.", answer=str(i + 1)), self.config.task)

    return Sums(vf.TasksetConfig())


def test_rows_and_reward_of_a_taskset(taskset):
    found = rows(taskset)
    assert [row["prompt"][1]["content"] for row in found] == ["0+1", "1+1", "2+1"]
    assert found[0]["prompt"][0] == {"role": "system", "content": "Add."}
    assert [row["privileged_context"] for row in found] == ["1", "2", "3"]
    assert len(rows(taskset, num=2)) == 2
    call = {"type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": 1}}}
    completions = [
        "1",
        [
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "name": "add", "content": "2"},
            {"role": "assistant", "content": "2"},
        ],
        [{"role": "assistant", "content": "4"}],
    ]
    reward = TasksetReward(taskset)
    columns = {name: [row[name] for row in found] for name in ("verifiers_task", "privileged_context")}
    prompts = [row["prompt"] for row in found]
    assert reward(prompts=prompts, completions=completions, **columns) == [2.0, 3.0, 0.0]
    assert reward.__name__ == "Sums_reward"

    async def inside_a_running_loop():
        return reward(prompts=prompts, completions=completions, **columns)

    assert asyncio.run(inside_a_running_loop()) == [2.0, 3.0, 0.0]
    with pytest.raises(ValueError, match="no column 'verifiers_task'"):
        reward(prompts=prompts, completions=completions)


def test_tools_of_a_taskset(taskset):
    from transformers.utils import get_json_schema

    add, less = sorted(tools(taskset), key=lambda tool: tool.__name__)
    assert (add.__name__, less.__name__) == ("adder_add", "adder_less")
    assert add(a=1, b=2) == 3
    assert asyncio.run(less(a=1, b=2)) == -1
    schema = get_json_schema(add)["function"]
    assert schema["description"] == "Add two numbers."
    assert schema["parameters"]["properties"]["a"] == {"type": "integer", "description": "The a."}
