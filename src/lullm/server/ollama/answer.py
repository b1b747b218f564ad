"""LinesAnswer: answers of POST /api/chat and /api/generate, as one object or a line of JSON for each delta."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from lullm.server.error import ApiError
from lullm.server.ollama.error import envelope
from lullm.server.ollama.schema import OllamaBody, OllamaChatBody
from lullm.server.openai.chat.conversation import known_arguments
from lullm.server.openai.logprob import chat_logprobs
from lullm.server.openai.reply import Reply
from lullm.server.sse import encode
from lullm.text.reply.event import CallArguments, CallEnd, CallStart, ReplyEvent
from lullm.text.reply.whole import WholeReply, joined
from lullm.types.outputs import RequestMetrics, RequestOutput

LINES = "application/x-ndjson"


def timestamp(seconds: float | None = None) -> str:
    """A time of the clock (Unix seconds; None: now), as Ollama writes it."""
    moment = datetime.now(UTC) if seconds is None else datetime.fromtimestamp(seconds, UTC)
    return moment.isoformat().replace("+00:00", "Z")


@dataclass(slots=True)
class LinesAnswer:
    """A reply under `message` (chat) or `response` (generate). Calls of tools are sent whole, not in pieces."""

    reply: Reply
    body: OllamaBody
    media_type: str = LINES
    _open_call: list[ReplyEvent] = field(default_factory=list)
    _num_calls: int = 0

    async def whole(self) -> list[bytes]:
        """The answer as one object."""
        events, output = await self.reply.whole()
        return [encode(self._line(joined(events)) | self._logprobs() | self._end(output))]

    def chunk(self, number: int, output: RequestOutput) -> bytes:
        """A line for a delta with contents, and at the end one with the figures."""
        said, logprobs = joined(self._ready(self.reply.read(output))), self._logprobs()
        lines = b""
        if not self.body.is_load and (said.text or said.thinking or said.calls or logprobs):
            lines = _as_line(self._line(said) | {"done": False} | logprobs)
        if output.finished:
            lines += _as_line(self._line(joined([])) | self._end(output))
        return lines

    def end(self) -> bytes:
        """Nothing: the last line was sent already."""
        return b""

    def failure(self, error: ApiError) -> bytes:
        """One line."""
        return _as_line(envelope(error))

    def _ready(self, events: Iterable[ReplyEvent]) -> Iterable[ReplyEvent]:
        """The events without those of an open call, which come once it has ended."""
        for event in events:
            if isinstance(event, CallStart | CallArguments):
                self._open_call.append(event)
                continue
            if isinstance(event, CallEnd):
                yield from self._open_call
                self._open_call.clear()
            yield event

    def _line(self, said: WholeReply) -> dict[str, Any]:
        line: dict[str, Any] = {"model": self.body.model, "created_at": timestamp()}
        text = "" if self.body.is_load else said.text
        thinking = {"thinking": said.thinking} if said.thinking else {}
        if not isinstance(self.body, OllamaChatBody):
            return line | {"response": text} | thinking
        message: dict[str, Any] = {"role": "assistant", "content": text} | thinking
        if said.calls:
            message["tool_calls"] = [
                {
                    "id": call.id,
                    "function": {"index": index, "name": call.name, "arguments": known_arguments(call.arguments)},
                }
                for index, call in enumerate(said.calls, self._num_calls)
            ]
            self._num_calls += len(said.calls)
        return line | {"message": message}

    def _logprobs(self) -> dict[str, Any]:
        completion = self.reply.completion
        if not self.body.logprobs or not completion.token_ids or completion.logprobs is None:
            return {}
        tokenizer = self.reply.generation.context.engine.tokenizer
        num_top = self.body.top_logprobs or 0
        rows = chat_logprobs(tokenizer, completion.token_ids, completion.logprobs, num_top)["content"]
        return {"logprobs": rows}

    def _end(self, output: RequestOutput) -> dict[str, Any]:
        """The reason for the end, and the figures; a request for nothing has none."""
        durations = _durations(output.metrics)
        if self.body.is_load:
            load = {name: durations[name] for name in ("total_duration", "load_duration")}
            return {"done": True, "done_reason": "unload" if self._unloads() else "load"} | load
        usage = self.reply.generation.usage
        counts = {"prompt_eval_count": usage.prompt_tokens, "eval_count": usage.completion_tokens}
        return {"done": True, "done_reason": self.reply.completion.finish_reason} | durations | counts

    def _unloads(self) -> bool:
        return self.reply.generation.asked.keep_alive == 0


def _as_line(data: dict[str, Any]) -> bytes:
    return encode(data) + b"\n"


def _durations(metrics: RequestMetrics | None) -> dict[str, int]:
    """In nanoseconds. Loading is the time before the first step: in the queue, and for the engine's wake-up."""
    if metrics is None:
        return dict.fromkeys(("total_duration", "load_duration", "prompt_eval_duration", "eval_duration"), 0)
    start = metrics.arrival_time
    scheduled = metrics.first_scheduled_time or start
    first = metrics.first_token_time or scheduled
    end = metrics.finished_time or metrics.last_token_time or first
    spans = {
        "total_duration": end - start,
        "load_duration": scheduled - start,
        "prompt_eval_duration": first - scheduled,
        "eval_duration": end - first,
    }
    return {name: max(0, round(1e9 * seconds)) for name, seconds in spans.items()}
