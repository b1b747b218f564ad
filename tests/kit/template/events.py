"""Events of replies with thoughts, text and calls, as a reader of forms gives them."""

from lullm.text.reply.event import CallArguments, CallEnd, CallStart, Text, Thinking

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
REPLY = [
    Thinking("let me "),
    Thinking("see"),
    Text("I "),
    Text("look"),
    CallStart(0, "call_1", "weather"),
    CallArguments(0, '{"city": '),
    CallArguments(0, '"Paris"}'),
    CallEnd(0),
    CallStart(1, "call_2", "time"),
    CallEnd(1),
    Text("done"),
]
