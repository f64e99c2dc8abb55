"""What an environment may offer beside its tools: the one list that engine, smoke run, arena and adapters read.

Knows no engine and imports nothing, since an environment's own process must start without torch.
"""

RESERVED_METHODS: tuple[str, ...] = (
    "reset",
    "get_reward",
    "privileged_context",
    "turn_rewards",
    "anchor_states",
)
"""Public methods of an environment that are no tools of the model; every other public method is one."""
