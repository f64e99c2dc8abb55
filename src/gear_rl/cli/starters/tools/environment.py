"""The environment of this run. The line `environment: environment:Desk` in run.yaml names it."""


class Desk:
    """One rollout: every item has to be sent with its code.

    The contract is TRL's: no argument to construct, public methods are tools, and their docstrings are what the
    model reads. `privileged_context` is gear's.
    """

    def reset(self, items, codes, **row):
        """Begin a rollout; every column of its row comes as an argument of its name."""
        self.right, self.sent = dict(zip(items, codes, strict=True)), {}

    def send(self, item: str, code: str) -> str:
        """Send an item.

        Args:
            item: Item
            code: Code
        """
        self.sent.setdefault(item, code)
        return "ok"

    def wait(self) -> str:
        """Do nothing."""
        return "ok"

    def get_reward(self) -> float:
        """The share of the items whose first code was right."""
        return sum(self.sent.get(item) == code for item, code in self.right.items()) / len(self.right)

    def privileged_context(self) -> str:
        """What only the teacher sees. It is no tool."""
        call = '<tool_call>\n{{"name": "send", "arguments": {{"item": "{}", "code": "{}"}}}}\n</tool_call>'
        return "\n".join(call.format(item, code) for item, code in self.right.items())
