"""Rewards for answers and tool calls, scored where a model's text can do no harm."""
