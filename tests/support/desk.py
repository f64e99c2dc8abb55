"""An environment, a tool, rewards and a privileged context that tests name in a run's settings."""


class Desk:
    def reset(self, number=0, **row):
        self.number = number

    def look(self, place: str) -> str:
        """Look somewhere.

        Args:
            place: Where.
        """
        return f"nothing at {place}"

    def get_reward(self) -> float:
        return 1.0 if self.number % 4 == 0 else 0.2


class Mute(Desk):
    def privileged_context(self):
        return None


def below_best(row, rollout):
    return f"It is {row['number']}." if rollout.reward < 0.9 else None


def add(a: int, b: int) -> int:
    """Add.

    Args:
        a: One.
        b: Other.
    """
    return a + b


def digits(completions, **columns):
    return [float(sum(letter in "0123456789" for letter in c[-1]["content"])) for c in completions]


async def silent(completions, **columns):
    return [None] * len(completions)


def broken(completions, **columns):
    return [float(columns["anwser"][0])] * len(completions)


def short_answer(completions, answer, **columns):
    return [float(len(text) < 9) for text in answer]
