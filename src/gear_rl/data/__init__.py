"""Rows, rewards and environments: a name or a path becomes what a run trains on."""
