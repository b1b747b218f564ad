"""TurnOrder: the orders of turns that a chat template accepts, and a conversation rearranged for it.

Clients send system messages anywhere (agents remind the model at every turn), and several messages of one role in a
row. Most templates accept that. Some refuse it (Qwen3.5, Gemma 3, Mistral), and some leave words out; so a template is
tested once, with a few short conversations. Turns that it does not accept are expressed as closely as possible, in
their place, so that a cached prefix stays valid.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lullm.text.template.call_id import SHORT

Turn = Mapping[str, Any]

_JOINABLE = frozenset({"role", "content"})


def trial_turns(roles: str, call_id: str = SHORT) -> list[dict[str, Any]]:
    """Turns with different texts: of the (s)ystem, the (u)ser, the (a)ssistant, its (c)all and the (r)esult."""
    call = {"id": call_id, "type": "function", "function": {"name": "f", "arguments": "{}"}}
    names = {"s": "system", "u": "user", "a": "assistant", "c": "assistant", "r": "tool"}
    turns: list[dict[str, Any]] = [{"role": names[r], "content": f"Umbra {n}."} for n, r in enumerate(roles)]
    for role, turn in zip(roles, turns, strict=True):
        if role == "c":
            turn |= {"content": "", "tool_calls": [call]}
        elif role == "r":
            turn |= {"tool_call_id": call_id, "name": "f"}
    return turns


@dataclass(frozen=True, slots=True)
class TurnOrder:
    """The orders that a template accepts.

    Attributes:
        first_system, more_systems: a system message at the beginning; further ones after it.
        late_system: one after other messages.
        neighbours: consecutive messages of the user, and of the assistant.
        behind_result: a message of the user after a tool's result.
    """

    first_system: bool = True
    more_systems: bool = True
    late_system: bool = True
    neighbours: bool = True
    behind_result: bool = True

    @classmethod
    def learned(cls, shows: Callable[[Sequence[Turn]], bool]) -> "TurnOrder":
        """The order of a template. `shows`: whether it prints all texts of a conversation.

        A template that does not print a plain conversation is assumed to accept everything.
        """

        def takes(roles: str, plain: str = "uau") -> bool:
            return shows(trial_turns(roles)) or not shows(trial_turns(plain))

        return cls(
            first_system=takes("suau"),
            more_systems=takes("ssuau"),
            late_system=takes("usausu"),
            neighbours=takes("uuaau"),
            behind_result=takes("ucru", plain="ucr"),
        )

    def arranged(self, turns: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """The same words in turns that the template accepts."""
        if self == _ANY:
            return list(turns)
        arranged: list[dict[str, Any]] = []
        for turn in turns:
            before = arranged[-1] if arranged else None
            if turn["role"] == "system" and not self._takes_system(before):
                turn = turn | {"role": "user"}
            if before is not None and self._joins(before, turn):
                arranged[-1] = before | {"content": _joined(before["content"], turn["content"])}
            else:
                arranged.append(turn)
        return arranged

    def _takes_system(self, before: Turn | None) -> bool:
        if before is None:
            return self.first_system
        return before["role"] == "system" or self.late_system

    def _joins(self, before: Turn, turn: Turn) -> bool:
        """Whether a message must be joined to the one before."""
        if turn.keys() != _JOINABLE:
            return False
        match before["role"], turn["role"]:
            case "system", "system":
                return not self.more_systems
            case "tool", "user":
                return not self.behind_result
            case ("user", "user") | ("assistant", "assistant"):
                return not self.neighbours and before.keys() == _JOINABLE
        return False


_ANY = TurnOrder()


def as_parts(content: str | list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A content as a list of parts: texts, and places of pictures."""
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _joined(before: str | list[dict[str, Any]], after: str | list[dict[str, Any]]) -> str | list[dict[str, Any]]:
    if isinstance(before, str) and isinstance(after, str):
        return f"{before}\n\n{after}"
    return [*as_parts(before), *as_parts("\n\n"), *as_parts(after)]
