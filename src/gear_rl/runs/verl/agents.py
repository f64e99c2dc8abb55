"""The agent loop of ``gear.environment``, as verl knows it by name."""

from collections.abc import Callable, Mapping
from typing import Any

from verl.experimental.agent_loop.agent_loop import register

from gear_rl.engines.verl.agent_loop import EnvironmentLoop
from gear_rl.engines.verl.batch import AGENT_NAME
from gear_rl.environments import PRIVILEGED_CONTEXT
from gear_rl.runs.verl.settings import environment_factory, read_config


@register(AGENT_NAME)
class ConfiguredLoop(EnvironmentLoop):
    """The environment of ``gear.environment``."""

    def __init__(self, trainer_config: Any, *args: Any, **options: Any) -> None:
        settings = read_config(trainer_config.config)
        self.environment = settings.environment
        self.time_limit, self.max_chars = settings.tool_time_limit, settings.tool_max_chars
        self.hidden_columns = (settings.config.privileged_column or PRIVILEGED_CONTEXT, PRIVILEGED_CONTEXT)
        super().__init__(trainer_config, *args, **options)

    def factory(self, row: Mapping[str, Any]) -> Callable[[], Any]:
        return environment_factory(self.environment, row)
