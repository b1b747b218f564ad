"""Events of replies as OpenAI's messages and deltas."""

from kit.template.events import EVENTS

from lullm.server.openai.chat.message import delta, message
from lullm.text.reply.event import CallEnd, Text


def test_a_message_without_calls_and_thoughts():
    assert message([Text("a"), Text("b")]) == {"role": "assistant", "content": "ab", "refusal": None, "reasoning": None}
    assert message(EVENTS[4:])["content"] is None


def test_deltas_add_up_to_the_message():
    whole = message(EVENTS)
    for cut in range(len(EVENTS) + 1):
        parts = [delta(EVENTS[:cut]), delta(EVENTS[cut:])]
        for name in ("content", "reasoning", "reasoning_content"):
            assert "".join(part.get(name, "") for part in parts) == whole[name]
        calls = {}
        for entry in (entry for part in parts for entry in part.get("tool_calls", [])):
            call = calls.setdefault(entry["index"], {"function": {"name": "", "arguments": ""}})
            call |= {name: entry[name] for name in ("id", "type") if name in entry}
            for name, piece in entry["function"].items():
                call["function"][name] += piece
        assert [calls[index] for index in sorted(calls)] == whole["tool_calls"]
    assert delta([CallEnd(0)]) == {}
