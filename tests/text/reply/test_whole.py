"""Events of replies, joined."""

from kit.template.events import EVENTS

from lullm.text.reply.whole import ToolCall, joined


def test_joined():
    reply = joined(EVENTS)
    assert (reply.text, reply.thinking) == ("Well:", "Let me look.")
    assert reply.calls == (ToolCall("call_a", "add", '{"x":1}'), ToolCall("call_b", "list", "{}"))
