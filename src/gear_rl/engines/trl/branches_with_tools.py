"""How the rollouts of an agent go on from any token: the turn is written to its end, and its calls are made.

The loop is TRL's in small, for an environment in its contract whose tools are safe to call again and again: a
rollout that branches off in its fourth turn begins with the calls of the first three.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from trl.chat_template_utils import parse_response

from gear_rl.engines.tools import tool_functions
from gear_rl.engines.trl.branches import Begun, Finish, SharedNoise, continuations
from gear_rl.engines.trl.trainer_type import Trainer


def played_out(trainer: Trainer, environment: type[Any]) -> Finish:
    """How the rollouts of ``trainer`` end in an environment of this class, which also gives their rewards."""
    suffixes: dict[tuple[tuple[str, str], ...], list[int]] = {}

    def answered(messages: list[dict[str, Any]]) -> list[int]:
        key = tuple((message["name"], message["content"]) for message in messages)
        if key not in suffixes:
            suffixes[key] = trainer._get_tool_suffix_ids(messages)
        return suffixes[key]

    def finish(begun: Sequence[Begun], noise: SharedNoise) -> Sequence[float]:
        rollouts = [_Rollout(one, environment()) for one in begun]
        playing = rollouts
        while playing:
            for rollout in playing:
                while not rollout.over and (turn := _whole_turn(trainer, rollout, noise.room)):
                    _call(trainer, rollout, turn, noise.room, answered)
            playing = [rollout for rollout in playing if not rollout.over]
            begun_again = [(one.begun.prompt, one.ids, one.begun.branch) for one in playing]
            for rollout, ids in zip(playing, continuations(trainer, begun_again, noise), strict=True):
                rollout.ids = ids
        return [float(rollout.environment.get_reward()) for rollout in rollouts]

    return finish


@dataclass(slots=True)
class _Rollout:
    begun: Begun
    environment: Any
    ids: list[int] = field(init=False)
    turn: int = 0
    """Where the turn begins that is being written, or read again."""
    rounds: int = 0
    """Turns whose calls were made."""
    over: bool = False
    tools: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        self.ids = [*self.begun.written]
        self.environment.reset(**self.begun.row)
        self.tools = {
            name: getattr(self.environment, name) for name in tool_functions(type(self.environment))
        }


def _whole_turn(trainer: Trainer, rollout: _Rollout, room: int) -> list[int]:
    """The ids of the turn that comes next, if it is written to its end or to that of the room; else none."""
    rest = rollout.ids[rollout.turn :]
    end = trainer._tokenizer.eos_token_id
    if end in rest:
        return rest[: rest.index(end) + 1]
    return rest if len(rollout.ids) >= room else []


def _call(trainer: Trainer, rollout: _Rollout, turn: list[int], room: int, answered: Any) -> None:
    """Make the calls of a whole turn, and put the answers after it, where they do not stand there already.

    A call that was written when the room was full is made, as TRL makes it; its answer has no place.
    """
    end = rollout.turn + len(turn)
    before = [*rollout.begun.prompt, *rollout.ids[: rollout.turn]]
    tools = [*rollout.tools.values()]
    calls = parse_response(trainer._tokenizer, turn, prefix=before, tools=tools).get("tool_calls")
    if not calls or rollout.rounds >= trainer.max_tool_calling_iterations:
        rollout.over = True
        return
    messages: list[dict[str, Any]] = []
    for call in calls:
        name = call["function"]["name"]
        try:
            if name not in rollout.tools:
                raise ValueError(f"Tool {name} not found.")
            result: Any = rollout.tools[name](**call["function"]["arguments"])
        except Exception as error:  # whatever a model may send
            result = {"error": str(error)}
        messages.append({"role": "tool", "name": name, "content": str(result)})
    answer = answered(messages)
    rollout.rounds += 1
    rollout.turn = end + len(answer)
    if rollout.ids[end : rollout.turn] != answer[: len(rollout.ids) - end]:
        raise ValueError(
            "a rollout that was begun again got other answers: its tools do not repeat themselves"
        )
    if len(rollout.ids) <= rollout.turn:
        rollout.ids[end:] = answer
        rollout.over = rollout.turn >= room
