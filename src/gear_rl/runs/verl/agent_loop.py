"""TRL's environment contract in verl's agent loop: ``reset(**row)``, public methods as tools, ``get_reward()``.

The facts for the credit step are sent to the driver with the rollout. They are read after the last token was
sampled, so no privileged context can reach a prompt.
"""

import asyncio
import copy
import inspect
import json
import logging
import re
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

from transformers.utils.chat_template_utils import get_json_schema
from verl.experimental.agent_loop.agent_loop import AgentLoopOutput, register
from verl.experimental.agent_loop.tool_agent_loop import ToolAgentLoop
from verl.tools.schemas import OpenAIFunctionToolSchema, ToolResponse

from gear_rl.credit.control_tokens import control_pattern, defuse_text
from gear_rl.engines.tools import ToolGuard, tool_functions
from gear_rl.engines.verl.rollouts import AGENT_NAME, SEEN
from gear_rl.environments import ANCHOR_STATES, PRIVILEGED_CONTEXT, TURN_REWARDS, value_of
from gear_rl.runs.verl.hydra_settings import environment_factory, read_config

logger = logging.getLogger(__name__)


@register(AGENT_NAME)
class EnvironmentLoop(ToolAgentLoop):
    """One rollout in an environment of its own, from ``gear.environment``. Tools are guarded as under TRL."""

    def __init__(self, trainer_config: Any, *args: Any, **options: Any) -> None:
        super().__init__(trainer_config, *args, **options)
        self.settings = read_config(trainer_config.config)
        self.guard = ToolGuard(self.settings.config.tool_time_limit, self.settings.config.tool_max_chars)
        self.control = control_pattern(self.tokenizer)
        self.called: list[str] = []
        self.agent_data: Any = None

    async def run(self, sampling_params: dict[str, Any], priority: int = 0, **row: Any) -> AgentLoopOutput:
        """One rollout."""
        given = dict(row.get("extra_info") or {})
        environment = self.guard.environment(environment_factory(self.settings.environment, given))()
        # The student sees the text of reset().
        hidden = (self.settings.config.privileged_column, PRIVILEGED_CONTEXT)
        shown = {name: value for name, value in given.items() if name not in hidden}
        prompt = [dict(message) for message in row["raw_prompt"]]
        # In a thread, as tools are: an environment that waits delays no other rollout.
        observation = await asyncio.to_thread(environment.reset, **shown)
        if observation is not None:
            prompt[-1]["content"] = f"{prompt[-1]['content']}{observation}"
        self.methods = {name: getattr(environment, name) for name in tool_functions(type(environment))}
        self.tool_schemas = [get_json_schema(method) for method in self.methods.values()]
        self.tools = {schema["function"]["name"]: _parsed_tool(schema) for schema in self.tool_schemas}
        with self.guard.serving():
            given.pop("tool_selection", None)  # verl's key for its own tools
            own = {**row, "raw_prompt": prompt, "extra_info": given}
            output = await super().run(sampling_params, priority=priority, **own)
        seen = self._seen(prompt, environment, output)
        output.extra_fields = {**output.extra_fields, SEEN: seen, "reward_extra_info": {}}
        if hasattr(environment, "get_reward"):
            judge = environment.get_reward
            is_async = inspect.iscoroutinefunction(judge)
            output.reward_score = float(await (judge() if is_async else asyncio.to_thread(judge)) or 0.0)
        return output

    async def _handle_pending_state(self, agent_data: Any, sampling_params: dict[str, Any]) -> Any:
        self.agent_data = agent_data
        return await super()._handle_pending_state(agent_data, sampling_params)

    async def _call_tool(
        self, tool_call: Any, tools_kwargs: dict[str, Any], agent_data: Any
    ) -> tuple[ToolResponse, float, dict[str, Any]]:
        name = str(tool_call.name)
        self.called.append(name)
        try:
            arguments = json.loads(tool_call.arguments)
            if name not in self.methods:
                raise ValueError(f"no tool named {name!r}; there are {', '.join(self.methods)}")
            text = await self._answer(self.methods[name], arguments)
        except Exception as error:
            text = str({"error": str(error)})
        return ToolResponse(text=defuse_text(text, self.control)), 0.0, {}

    async def _answer(self, method: Callable[..., Any], arguments: Mapping[str, Any]) -> str:
        if inspect.iscoroutinefunction(method):
            return str(await method(**arguments))
        limit = self.settings.config.tool_time_limit
        try:
            # One that never returns stays in its thread.
            return str(await asyncio.wait_for(asyncio.to_thread(method, **arguments), limit))
        except TimeoutError:
            text = f"the tool took more than {limit:g} seconds"
            self.guard.answers[str({"error": text})] = "timeout"
            raise RuntimeError(text) from None

    def _seen(
        self, prompt: list[dict[str, Any]], environment: Any, output: AgentLoopOutput
    ) -> dict[str, Any]:
        """The facts of this rollout for the credit step, as plain data."""
        messages = copy.deepcopy(self.agent_data.messages[len(prompt) :])
        names, tools = iter(self.called), list(self.methods)
        for message in messages:
            if message.get("role") == "tool":
                message["name"] = next(names, "")
                message["failure"] = self.guard.failure_of(message, tools)
        last = self.tokenizer.decode(_last_turn(output.response_ids, output.response_mask))
        facts = {
            name: _value(environment, name) for name in (PRIVILEGED_CONTEXT, TURN_REWARDS, ANCHOR_STATES)
        }
        return {
            "prompt": prompt,
            "messages": messages,
            "tools": self.tool_schemas,
            "tool_counts": self.guard.report(messages, last, tools, self.control),
            **facts,
        }


def _parsed_tool(schema: Mapping[str, Any]) -> SimpleNamespace:
    """A tool for verl's parsers of calls: they read lists and objects as JSON, our guard the rest as text."""
    function = schema["function"]
    given = function["parameters"]
    properties = {
        name: {"type": "object" if re.search("array|object", str(own.get("type"))) else "string"}
        for name, own in given["properties"].items()
    }
    read = {**schema, "function": {**function, "parameters": {**given, "properties": properties}}}
    return SimpleNamespace(tool_schema=OpenAIFunctionToolSchema.model_validate(read))


def _last_turn(ids: list[int], mask: list[int]) -> list[int]:
    """The ids of the last run of sampled tokens."""
    end = max((t + 1 for t, sampled in enumerate(mask) if sampled), default=0)
    begin = max((t + 1 for t in range(end) if not mask[t]), default=0)
    return ids[begin:end]


def _value(environment: Any, name: str) -> Any:
    """The environment's value for the rollout; a failure is logged, and the run goes on."""
    try:
        return value_of(environment, name)
    except Exception as error:
        kind = type(environment).__name__
        logger.warning("%s.%s() failed: %s: %s", kind, name, type(error).__name__, error)
        return None
