"""An OpenEnv client as a TRL environment: with a stand-in, and with the package where it is installed."""

import socket
import threading
from types import SimpleNamespace

import pytest
from pydantic import BaseModel, Field
from transformers.utils import get_json_schema

from gear_rl.data.adapters.openenv import environment


class Guess(BaseModel):
    """Guess the number.

    More about it.
    """

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


def test_the_actions_fields_are_the_tools_arguments():
    assert get_json_schema(environment(Client, Guess)().step)["function"] == {
        "name": "step",
        "description": "Guess the number.",
        "parameters": {
            "type": "object",
            "properties": {
                "number": {"type": "integer", "description": "Your guess."},
                "loud": {"type": "boolean", "description": "The loud."},
            },
            "required": ["number"],
        },
        "return": {"type": "string"},
    }


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


def test_an_asynchronous_client_with_summed_rewards_and_own_observations():
    show = {"show": lambda seen: seen.get("said", "")}
    made = environment(lambda: SimpleNamespace(sync=Client), Guess, reward="sum", **show)()
    assert made.reset() is None, "nothing to add to the prompt"
    assert made.step(number=1) == "wrong"
    with pytest.raises(ValueError, match="number"):
        made.step(number="many")
    made.step(number=3)
    assert made.get_reward() == 0.5


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        ({"reset": Guess}, "'reset' cannot be a tool's name"),
        ({"_x": Guess}, "'_x' cannot be a tool's name"),
        (dict, "dict is no pydantic model"),
    ],
)
def test_what_cannot_be_a_tool_is_named(actions, message):
    with pytest.raises(ValueError, match=message):
        environment(Client, actions)


@pytest.mark.filterwarnings("ignore")
def test_a_real_server_and_client():
    pytest.importorskip("openenv")
    import uvicorn
    from openenv.core import GenericEnvClient
    from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app

    class Add(Action):
        """Add to the counter."""

        amount: int = Field(description="How much.")

    class Total(Observation):
        total: int = 0

    class Counter(Environment):
        SUPPORTS_CONCURRENT_SESSIONS = True

        def reset(self, seed=None, episode_id=None, **kwargs):
            self.total = seed or 0
            return Total(total=self.total)

        def step(self, action, timeout_s=None, **kwargs):
            self.total += action.amount
            return Total(total=self.total, reward=float(self.total == 10), done=self.total >= 10)

        @property
        def state(self):
            return State()

    listener = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    app = create_fastapi_app(Counter, Add, Total, max_concurrent_envs=4)
    server = uvicorn.Server(uvicorn.Config(app, log_level="critical"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        thread.join(0.02)
    try:
        cls = environment(lambda: GenericEnvClient(base_url=url), Add, reset_columns=["seed"])
        one, two = cls(), cls()
        assert one.reset(seed=4, answer="6") == '{"total": 4}'
        assert two.reset(seed=0) == '{"total": 0}'
        assert one.step(amount=6) == '{"total": 10}'
        assert two.step(amount=1) == '{"total": 1}'
        assert (one.get_reward(), two.get_reward()) == (1.0, 0.0)
        one._client.close()
        two._client.close()
    finally:
        server.should_exit = True
        thread.join(timeout=20)
