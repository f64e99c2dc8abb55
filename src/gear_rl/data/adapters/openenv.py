"""An OpenEnv 0.10 client as an environment class for TRL's ``environment_factory``.

TRL 1.16 drives OpenEnv's harness sessions in its asynchronous trainer only. openenv is not imported: a client is
anything with ``reset`` and ``step``, whose results have ``observation``, ``reward`` and ``done``.
"""

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gear_rl.data.adapters import as_tool
from gear_rl.environments import RESERVED_METHODS
from gear_rl.errors import InputError, did_you_mean

_HIDDEN = ("metadata", "reward", "done")
"""Fields of every OpenEnv observation that are hidden from the model."""


def environment(
    client: Callable[[], Any],
    actions: type[Any] | Mapping[str, type[Any]],
    *,
    reset_columns: Sequence[str] = (),
) -> type[Any]:
    """A class for TRL's ``environment_factory``: no-argument constructor, ``reset``, tools, ``get_reward``.

    ``client`` makes a client (``lambda: EchoEnv(base_url="http://localhost:8000")``), which connects at the first
    reset. ``actions`` is an action class, whose tool is called ``step``, or ``{tool name: action class}``; its
    fields are the tool's arguments. Only ``reset_columns`` of a row reach the server. A tool returns the
    observation as JSON, ``get_reward`` the last step's reward.

    >>> environment(dict, {"reset": dict})
    Traceback (most recent call last):
    ValueError: actions: 'reset' cannot be a tool's name; choose another
    """
    tools = dict(actions) if isinstance(actions, Mapping) else {"step": actions}
    for name in tools:
        if not name.isidentifier() or name.startswith("_") or name in RESERVED_METHODS:
            raise ValueError(f"actions: {name!r} cannot be a tool's name; choose another")

    if isinstance(reset_columns, str):
        raise InputError(f"reset_columns: {reset_columns!r} is text; give a list, [{reset_columns!r}]")

    class OpenEnvEnvironment:
        """One session of an OpenEnv server."""

        def __init__(self) -> None:
            self._client: Any = None
            self._reward = 0.0
            self._done = True

        def reset(self, **row: Any) -> str | None:
            """Begin an episode; the first observation is added to the prompt."""
            for name in reset_columns:
                if name not in row:
                    raise InputError(
                        f"reset_columns: a row has no column {name!r}; {did_you_mean(name, row)}"
                    )
            if self._client is None:
                made = client()
                self._client = made.sync() if hasattr(made, "sync") else made
            result = self._client.reset(**{name: row[name] for name in reset_columns})
            self._reward = 0.0
            self._done = bool(result.done)
            return _text(result.observation) or None

        def get_reward(self) -> float:
            """The reward of the last step; 0.0 before any step."""
            return self._reward

        def _step(self, action: Any) -> str:
            if self._done:
                raise ValueError("the episode is over")
            result = self._client.step(action)
            self._reward = float(result.reward or 0.0)
            self._done = bool(result.done)
            return _text(result.observation)

    for name, action in tools.items():
        setattr(OpenEnvEnvironment, name, _tool(name, action))
    return OpenEnvEnvironment


def _tool(name: str, action: type[Any]) -> Callable[..., str]:
    """The method that takes an action, typed and documented for the tool's JSON schema."""
    every: Mapping[str, Any] | None = getattr(action, "model_fields", None)
    if every is None:
        raise ValueError(f"actions: {action.__name__} is no pydantic model, as OpenEnv's actions are")
    fields = {key: field for key, field in every.items() if key != "metadata"}

    def tool(self: Any, **arguments: Any) -> str:
        return self._step(action(**arguments))

    parameters = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
    for key, field in fields.items():
        required = field.is_required()
        default = inspect.Parameter.empty if required else field.get_default(call_default_factory=True)
        keyword = inspect.Parameter.KEYWORD_ONLY
        parameters.append(inspect.Parameter(key, keyword, default=default, annotation=field.annotation))
    tool.__annotations__ = {key: field.annotation for key, field in fields.items()} | {"return": str}
    tool.__qualname__ = f"OpenEnvEnvironment.{name}"
    own = inspect.cleandoc(action.__doc__ or "").partition("\n")[0] or f"Take the action {action.__name__}."
    texts = {key: field.description for key, field in fields.items()}
    return as_tool(tool, name, own, inspect.Signature(parameters, return_annotation=str), texts)


def _text(observation: Any) -> str:
    if isinstance(observation, str):
        return observation
    fields: Any = observation.model_dump(mode="json") if hasattr(observation, "model_dump") else observation
    if isinstance(fields, Mapping):
        fields = {key: value for key, value in fields.items() if key not in _HIDDEN}
    return json.dumps(fields, ensure_ascii=False)
