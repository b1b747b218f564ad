"""Events of replies, joined."""

from lullm.text.reply.event import CallArguments, CallEnd, CallStart, Text, Thinking
from lullm.text.reply.whole import ToolCall, joined

EVENTS = [
    Thinking("Let me "),
    Thinking("look."),
    Text("Well"),
    Text(":"),
    CallStart(0, "call_a", "add"),
    CallArguments(0, '{"x":'),
    CallArguments(0, "1}"),
    CallEnd(0),
    CallStart(1, "call_b", "list"),
    CallArguments(1, "{}"),
    CallEnd(1),
]


def test_joined():
    reply = joined(EVENTS)
    assert (reply.text, reply.thinking) == ("Well:", "Let me look.")
    assert reply.calls == (ToolCall("call_a", "add", '{"x":1}'), ToolCall("call_b", "list", "{}"))
