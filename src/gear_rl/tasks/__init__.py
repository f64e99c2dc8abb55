"""Real tasks: checked answers, checked tool calls, and other people's environments as rows and rewards."""
