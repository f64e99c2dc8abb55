"""An environment for function-calling data, for `environment: examples.tool_env:FunctionDesk`. Put your own here.

What a trainer asks of an environment: a constructor without arguments; `reset`, which is given a row's columns
and may return text that is added to the prompt; public methods with annotations and a docstring, which are the
tools; `get_reward`. And, for methods that need a teacher: `privileged_context`, what only the teacher sees.

Run it:    gear train --config examples/tools_qwen3_4b.yaml --smoke
"""

import json
from typing import Any


class FunctionDesk:
    """One rollout over rows that offer functions and list the calls which would be right (xLAM's format).

    >>> desk = FunctionDesk()
    >>> weather = '[{"name": "weather", "parameters": {"city": {"type": "str"}}}]'
    >>> _ = desk.reset(weather, '[{"name": "weather", "arguments": {"city": "Oslo"}}]')
    >>> desk.call("weather", {"city": "Oslo"}), desk.get_reward()
    ('called', 1.0)
    """

    def __init__(self) -> None:
        self._functions: dict[str, dict[str, Any]] = {}
        self._wanted: list[dict[str, Any]] = []
        self._made: list[dict[str, Any]] = []

    def reset(self, functions: str, calls: str, **row: Any) -> str:
        """Begin the rollout of a row; the functions are added to its prompt, the wanted calls are not."""
        offered = json.loads(functions)
        self._functions = {function["name"]: function for function in offered}
        self._wanted = [self._plain(call["name"], call["arguments"]) for call in json.loads(calls)]
        self._made = []
        return "\n\nFunctions:\n" + "\n".join(json.dumps(function) for function in offered)

    def call(self, function: str, arguments: dict) -> str:
        """Call one of the functions of the task.

        Args:
            function: Name of the function.
            arguments: Its arguments, by name.

        Returns:
            What came of it.
        """
        if function not in self._functions:
            raise ValueError(f"no function {function!r}; there are {', '.join(self._functions)}")
        known = self._parameters(function)
        unknown = [name for name in arguments if name not in known]
        missing = [name for name, facts in known.items() if name not in arguments and _required(facts)]
        if unknown or missing:
            raise ValueError(f"{function}: unknown arguments {unknown}, missing arguments {missing}")
        self._made.append(self._plain(function, arguments))
        return "called"

    def get_reward(self) -> float:
        """F1 of the calls made and the calls wanted; a call counts if every argument is right, order does not."""
        left = list(self._wanted)
        right = 0
        for made in self._made:
            if made in left:
                left.remove(made)
                right += 1
        calls = len(self._made) + len(self._wanted)
        return 2 * right / calls if calls else 1.0

    def privileged_context(self) -> str:
        """The wanted calls, as the tool would be called; only the teacher's prompt shows them."""
        return "\n".join(
            json.dumps(
                {"name": "call", "arguments": {"function": w["name"], "arguments": w["arguments"]}},
                ensure_ascii=False,
            )
            for w in self._wanted
        )

    def _parameters(self, function: str) -> dict[str, Any]:
        return self._functions[function].get("parameters") or {}

    def _plain(self, function: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """A call without the arguments that only repeat a default, so that equal calls compare equal."""
        known = self._parameters(function) if function in self._functions else {}
        kept = {
            name: value
            for name, value in arguments.items()
            if not ("default" in known.get(name, {}) and known[name]["default"] == value)
        }
        return {"name": function, "arguments": kept}


def _required(facts: dict[str, Any]) -> bool:
    return "default" not in facts and "optional" not in str(facts.get("type", ""))
