"""Other people's problems and environments (reasoning-gym, verifiers, OpenEnv) as rows, rewards and tools."""
