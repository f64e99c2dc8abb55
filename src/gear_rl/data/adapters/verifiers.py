"""Tasksets of ``verifiers.v1`` 0.4 as dataset rows, a reward, and tools.

A task that needs a runtime, a judge or hooks, and a toolset with state, are refused with the reason.
"""

# pyright: reportMissingImports=false

import asyncio
import functools
import inspect
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from gear_rl.data.adapters import as_tool
from gear_rl.data.rewards.text import Completion

COLUMN = "verifiers_task"
"""The column with the task's data, as JSON text."""
CONTEXT_FIELDS = ("privileged_context", "solution", "answer", "ground_truth", "reference")
"""Fields of a task's data that may become the privileged context, in the order in which they are tried."""


def load_taskset(name: str) -> Any:
    """The installed taskset of that id, with its default configuration."""
    vf = _package()
    try:
        return vf.load_taskset(vf.taskset_config_type(name)(id=name))
    except (ModuleNotFoundError, AttributeError, TypeError) as error:
        raise ValueError(f"verifiers/{name}: {error}") from None


def rows(taskset: Any, *, num: int | None = None) -> list[dict[str, Any]]:
    """The taskset's tasks as rows: prompt, privileged_context if the data holds one, and ``verifiers_task``.

    ``num`` is needed for a taskset without end. Raises ``ValueError`` for a task that cannot be scored here.
    """
    if num is None and not taskset.bounded:
        raise ValueError(f"{type(taskset).__name__} has no end; give a number of rows")
    return [_row(task) for task in (taskset if num is None else itertools.islice(taskset, num))]


@dataclass(frozen=True, eq=False)
class TasksetReward:
    """The taskset's own rewards, summed with their weights; the signature of a TRL reward function."""

    taskset: Any

    @property
    def __name__(self) -> str:
        """What a trainer's log calls this reward."""
        return f"{type(self.taskset).__name__}_reward"

    def __call__(
        self, prompts: Sequence[Any], completions: Sequence[Completion], **columns: Any
    ) -> list[float | None]:
        if COLUMN not in columns:
            raise ValueError(
                f"{self.__name__}: the dataset has no column {COLUMN!r}; use dataset verifiers/NAME"
            )
        kind = self.taskset.task_type()
        tasks = [
            kind(kind.data_type().model_validate_json(data), self.taskset.config.task)
            for data in columns[COLUMN]
        ]
        traces = [_trace(*each) for each in zip(tasks, prompts, completions, strict=True)]

        async def score() -> None:
            await asyncio.gather(*(task.score(trace) for task, trace in zip(tasks, traces, strict=True)))

        # A thread of its own: a notebook has an event loop running in this one.
        with ThreadPoolExecutor(max_workers=1) as thread:
            thread.submit(asyncio.run, score()).result()
        return [float(trace.reward) for trace in traces]


def tools(taskset: Any) -> list[Callable[..., Any]]:
    """The tools of the taskset as functions for TRL's ``tools``, with the names that its servers give.

    ``ValueError`` for a toolset that keeps state, has a setup, or runs on a server.
    """
    _package()
    from verifiers.v1.mcp import Toolset
    from verifiers.v1.state import State, state_cls
    from verifiers.v1.utils.decorators import discover_decorated

    config = taskset.config
    functions: list[Callable[..., Any]] = []
    for toolset in [*taskset.toolsets(config), *taskset.task_type().toolsets(config.task)]:
        kind = type(toolset)
        why = [hook for hook in ("setup", "setup_task") if getattr(kind, hook) is not getattr(Toolset, hook)]
        why += ["state"] if state_cls(kind) is not State else []
        why += ["a server"] if getattr(toolset.config, "url", None) else []
        if why:
            raise ValueError(
                f"{kind.__name__}: not a toolset for this process: it has {' and '.join(why)}; serve it with "
                "verifiers"
            )
        prefix = f"{toolset.server_name}_" if toolset.server_name else ""
        for tool in discover_decorated(toolset, "tool"):
            name = prefix + (getattr(tool, "tool_name", None) or tool.__name__)
            signature = inspect.signature(tool)
            text = inspect.cleandoc(tool.__doc__ or name)
            function = functools.update_wrapper(functools.partial(tool), tool)  # a method takes no other name
            functions.append(as_tool(function, name, text, signature, dict.fromkeys(signature.parameters)))
    return functions


def _package() -> Any:
    try:
        import verifiers.v1 as vf
    except ImportError:
        raise ImportError("verifiers 0.4 is not installed; run: pip install 'gear-rl[verifiers]'") from None
    return vf


def _row(task: Any) -> dict[str, Any]:
    _refuse_what_needs_a_runtime(task)
    data = task.data
    if data.prompt is None:
        raise ValueError(
            f"{type(task).__name__} {data.idx}: no prompt; a user who opens the chat is not supported"
        )
    messages = [] if data.system_prompt is None else [{"role": "system", "content": data.system_prompt}]
    if isinstance(data.prompt, str):
        messages.append({"role": "user", "content": data.prompt})
    else:
        messages += [message.model_dump(mode="json", exclude_none=True) for message in data.prompt]
    row: dict[str, Any] = {"prompt": messages, COLUMN: data.model_dump_json()}
    for name in CONTEXT_FIELDS:
        if isinstance(getattr(data, name, None), str):
            row["privileged_context"] = getattr(data, name)
            break
    return row


def _refuse_what_needs_a_runtime(task: Any) -> None:
    vf = _package()
    kind = type(task)
    hooks = [name for name in ("setup", "finalize") if getattr(kind, name) is not getattr(vf.Task, name)]
    rewards = [
        fn.__name__
        for fn in task.hooks("reward")
        if (runtime := inspect.signature(fn).parameters.get("runtime")) and runtime.default is runtime.empty
    ]
    why = {
        "its hooks need a runtime": hooks,
        "these rewards need a runtime": rewards,
        "judges call a model": [str(judge.name) for judge in task.config.judges],
    }
    said = [f"{reason} ({', '.join(names)})" for reason, names in why.items() if names]
    if kind.NEEDS_CONTAINER:
        said.append("it needs a container")
    if said:
        raise ValueError(f"{kind.__name__}: cannot be scored in this process: {'; '.join(said)}")


def _trace(task: Any, prompt: Any, completion: Completion) -> Any:
    vf = _package()
    before, after = (
        [{"role": role, "content": said}] if isinstance(said, str) else list(said)
        for role, said in (("user", prompt), ("assistant", completion))
    )
    nodes = [
        vf.MessageNode(parent=i - 1 if i else None, message=message, sampled=sampled)
        for i, (message, sampled) in enumerate(_messages(before, after))
    ]
    return vf.Trace(
        task=vf.TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash),
        agent=vf.AgentInfo(config=vf.AgentConfig()),
        nodes=nodes,
        is_completed=True,
        ok=True,
    )


def _messages(before: list[Any], after: list[Any]) -> Iterator[tuple[dict[str, Any], bool]]:
    """The messages as verifiers has them, each with whether the policy wrote it; calls get ids."""
    unanswered: list[str] = []
    number = itertools.count()
    for place, message in enumerate([*before, *after]):
        role, content = message["role"], message.get("content")
        if role == "assistant":
            calls = [_tool_call(call, next(number)) for call in message.get("tool_calls") or []]
            unanswered = [call["id"] for call in calls]
            yield {"role": role, "content": content, "tool_calls": calls or None}, place >= len(before)
        elif role == "tool":
            call_id = unanswered.pop(0) if unanswered else "unknown"
            name = message.get("name")
            yield {"role": role, "content": content, "tool_call_id": call_id, "name": name}, False
        else:
            yield {"role": role, "content": content}, False


def _tool_call(call: Mapping[str, Any], number: int) -> dict[str, Any]:
    function = call.get("function") or call
    arguments = function.get("arguments")
    text = arguments if isinstance(arguments, str) else json.dumps(arguments or {})
    return {"id": f"call_{number}", "name": function.get("name") or "", "arguments": text}
