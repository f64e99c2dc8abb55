"""Rollouts that two runs have in common: what vLLM draws depends on step, problem and sibling alone."""

import zlib

from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop


class SeededLoop(SingleTurnAgentLoop):
    """verl's loop of one turn, each request with its own seed: vLLM's one for all depends on who comes first."""

    async def run(self, sampling_params, priority=0, **kwargs):
        name = "/".join(str(kwargs[key]) for key in ("global_steps", "index", "session_id"))
        seeded = {**sampling_params, "seed": zlib.crc32(name.encode())}
        return await super().run(seeded, priority=priority, **kwargs)
