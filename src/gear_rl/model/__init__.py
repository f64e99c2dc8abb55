"""A language model as it is run: its forwards, prompts that are shared, and the weights of its teacher."""
