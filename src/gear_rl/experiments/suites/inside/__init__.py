"""What runs inside a tool's environment, by that environment's Python: scripts that import nothing of gear_rl."""
