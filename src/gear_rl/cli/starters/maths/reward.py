"""The reward of this run. The line `reward: reward:score` in run.yaml names it."""


def score(completions, answer, **columns):
    """One number for each completion: 1 if it ends with the right answer.

    `completions` are lists of chat messages. Every column of the rows comes as an argument of its name, one value
    for each completion.
    """
    texts = [messages[-1]["content"] for messages in completions]
    return [float(text.endswith(f"ans {right}")) for text, right in zip(texts, answer, strict=True)]
