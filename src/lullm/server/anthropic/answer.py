"""MessageAnswer: answers of POST /v1/messages."""

from dataclasses import dataclass, field
from typing import Any

from lullm.server.anthropic.block_stream import BlockStream, content_blocks
from lullm.server.anthropic.body import MessagesBody
from lullm.server.anthropic.error import envelope
from lullm.server.error import ApiError
from lullm.server.openai.reply import Reply
from lullm.server.sse import EVENTS, encode, typed_event
from lullm.types.outputs import RequestOutput


@dataclass(slots=True)
class MessageAnswer:
    """A reply as one message, or as the events of its blocks."""

    reply: Reply
    body: MessagesBody
    media_type: str = EVENTS
    _blocks: BlockStream = field(default_factory=BlockStream)
    _has_begun: bool = False

    async def whole(self) -> list[bytes]:
        """The message."""
        events, _ = await self.reply.whole()
        return [encode(self._message(content_blocks(events)) | self._end() | {"usage": self._usage()})]

    def chunk(self, number: int, output: RequestOutput) -> bytes:
        """The message's next events, in Anthropic's order."""
        events = self.reply.read(output)
        pieces: list[dict[str, Any]] = []
        if not self._has_begun:
            self._has_begun = True
            opening = self._message([]) | {"stop_reason": None, "stop_sequence": None, "usage": self._usage()}
            pieces = [{"type": "message_start", "message": opening}, {"type": "ping"}]
        return b"".join(map(typed_event, [*pieces, *self._blocks.feed(events)]))

    def end(self) -> bytes:
        """The last events."""
        last = [
            *self._blocks.close(),
            {"type": "message_delta", "delta": self._end(), "usage": self._usage()},
            {"type": "message_stop"},
        ]
        return b"".join(map(typed_event, last))

    def failure(self, error: ApiError) -> bytes:
        """One event of the type 'error'."""
        return typed_event(envelope(error))

    def _message(self, content: list[dict[str, Any]]) -> dict[str, Any]:
        generation = self.reply.generation
        return {
            "id": generation.id,
            "type": "message",
            "role": "assistant",
            "model": generation.model_name,
            "content": content,
        }

    def _end(self) -> dict[str, Any]:
        """The reason for the end; of stop tokens, only strings have a name here."""
        completion, sequence = self.reply.completion, None
        if completion.finish_reason == "length":
            reason = "model_context_window_exceeded" if self._is_cut_by_the_model() else "max_tokens"
        elif isinstance(completion.stop_reason, str):
            reason, sequence = "stop_sequence", completion.stop_reason
        else:
            reason = "tool_use" if self.reply.has_calls else "end_turn"
        return {"stop_reason": reason, "stop_sequence": sequence}

    def _is_cut_by_the_model(self) -> bool:
        max_tokens = self.reply.generation.requests[0].params.max_tokens
        return max_tokens is None or self.reply.generation.usage.completion_tokens < max_tokens

    def _usage(self) -> dict[str, Any]:
        """Anthropic counts cached prompt tokens separately from the other ones."""
        usage, num_cached = self.reply.generation.usage, self.reply.cached_tokens
        return {
            "input_tokens": usage.prompt_tokens - num_cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": num_cached,
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": {"thinking_tokens": self.reply.thinking_tokens},
        }
