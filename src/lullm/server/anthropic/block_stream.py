"""BlockStream: the events of a reply as Anthropic's content blocks, streamed or folded into a whole."""

from collections.abc import Iterable, Iterator
from typing import Any

from lullm.server.openai.chat.conversation import known_arguments
from lullm.text.reply.event import CallArguments, CallEnd, CallStart, ReplyEvent, Text, Thinking


class BlockStream:
    """One block is open at a time: it ends where a piece of another kind begins."""

    def __init__(self) -> None:
        self._index = -1
        self._open: str | None = None

    def feed(self, events: Iterable[ReplyEvent]) -> Iterator[dict[str, Any]]:
        """The stream events for some events of a reply."""
        for event in events:
            match event:
                case Text(text):
                    yield from self._ensure_open("text", {"type": "text", "text": ""})
                    yield self._delta({"type": "text_delta", "text": text})
                case Thinking(text):
                    block = {"type": "thinking", "thinking": "", "signature": ""}
                    yield from self._ensure_open("thinking", block)
                    yield self._delta({"type": "thinking_delta", "thinking": text})
                case CallStart():
                    yield from self.close()
                    call = {"type": "tool_use", "id": event.id, "name": event.name, "input": {}}
                    yield from self._ensure_open("tool_use", call)
                case CallArguments():
                    yield self._delta({"type": "input_json_delta", "partial_json": event.piece})
                case CallEnd():
                    yield from self.close()

    def close(self) -> Iterator[dict[str, Any]]:
        """End the open block."""
        if self._open is not None:
            self._open = None
            yield {"type": "content_block_stop", "index": self._index}

    def _ensure_open(self, kind: str, block: dict[str, Any]) -> Iterator[dict[str, Any]]:
        if self._open != kind:
            yield from self.close()
            self._open = kind
            self._index += 1
            yield {"type": "content_block_start", "index": self._index, "content_block": block}

    def _delta(self, delta: dict[str, Any]) -> dict[str, Any]:
        return {"type": "content_block_delta", "index": self._index, "delta": delta}


def content_blocks(events: Iterable[ReplyEvent]) -> list[dict[str, Any]]:
    """The whole content of a reply: its stream events, folded."""
    stream = BlockStream()
    blocks: list[dict[str, Any]] = []
    pieces: list[list[str]] = []
    for event in (*stream.feed(events), *stream.close()):
        if event["type"] == "content_block_start":
            blocks.append(event["content_block"])
            pieces.append([])
        elif event["type"] == "content_block_delta":
            _, piece = event["delta"].values()
            pieces[-1].append(piece)
    for block, parts in zip(blocks, pieces, strict=True):
        if block["type"] == "tool_use":
            block["input"] = known_arguments("".join(parts))
        else:
            block[block["type"]] = "".join(parts)
    return blocks
