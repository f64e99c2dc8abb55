"""An OpenEnv client as a TRL environment: with a stand-in, and with the package where it is installed."""

from types import SimpleNamespace

import pytest
from pydantic import BaseModel, Field
from transformers.utils import get_json_schema

from gear_rl.data.adapters.openenv import environment
from gear_rl.errors import InputError


class Guess(BaseModel):
    """Guess the number."""

    metadata: dict = Field(default_factory=dict)
    number: int = Field(description="Your guess.")
    loud: bool = False


class GiveUp(BaseModel):
    metadata: dict = Field(default_factory=dict)


class Client:
    """A stand-in that records what reaches it."""

    made = 0

    def __init__(self):
        Client.made += 1
        self.seen = []

    def reset(self, **kwargs):
        self.seen.append(kwargs)
        self.number = kwargs.get("seed", 3)
        return SimpleNamespace(
            observation={"hint": "guess", "reward": 9, "done": False}, reward=None, done=False
        )

    def step(self, action):
        self.seen.append(action)
        right = isinstance(action, Guess) and action.number == self.number
        text = {"said": "right" if right else "wrong", "metadata": {"number": self.number}}
        return SimpleNamespace(observation=text, reward=1.0 if right else -0.5, done=right)


def test_wrong_reset_columns_are_named():
    with pytest.raises(InputError, match=r"reset_columns: 'seed' is text; give a list, \['seed'\]"):
        environment(Client, Guess, reset_columns="seed")
    made = environment(Client, Guess, reset_columns=["sed"])()
    with pytest.raises(InputError, match=r"reset_columns: a row has no column 'sed'; did you mean seed\?"):
        made.reset(prompt=[], seed=5)


def test_an_episode_and_its_reward():
    before = Client.made
    made = environment(Client, {"guess": Guess, "give_up": GiveUp}, reset_columns=["seed"])()
    assert Client.made == before, "TRL makes an instance only to look at it"
    public = {name for name in dir(made) if not name.startswith("_")}
    assert public == {"guess", "give_up", "reset", "get_reward"}
    assert made.get_reward() == 0.0
    observation = made.reset(prompt=[], seed=5, privileged_context="it is 5")
    assert observation == '{"hint": "guess"}'
    assert made._client.seen == [{"seed": 5}], "what is meant for the teacher stays here"
    assert made.guess(number=4) == '{"said": "wrong"}'
    assert made.get_reward() == -0.5
    assert made.guess(number=5, loud=True) == '{"said": "right"}'
    assert made._client.seen[-1] == Guess(number=5, loud=True)
    assert made.get_reward() == 1.0
    with pytest.raises(ValueError, match="the episode is over"):
        made.guess(number=5)
    assert get_json_schema(made.give_up)["function"]["description"] == "Take the action GiveUp."
    client = made._client
    made.reset(seed=6)
    assert made._client is client and made.get_reward() == 0.0
