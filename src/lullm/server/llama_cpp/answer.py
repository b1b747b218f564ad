"""CompletionAnswer: answers of POST /completion and /infill."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lullm.server.error import ApiError
from lullm.server.llama_cpp.error import envelope
from lullm.server.llama_cpp.schema import GenerationFields
from lullm.server.openai.generation import Generation, Usage
from lullm.server.openai.logprob import best_tokens, chat_logprobs
from lullm.server.openai.reply import Reply
from lullm.server.sse import EVENTS, encode, event
from lullm.types.outputs import CompletionOutput, PositionLogprobs, RequestMetrics, RequestOutput
from lullm.types.sampling_params import SamplingParams


@dataclass(slots=True)
class CompletionAnswer:
    """A completion as one object, or as one for each delta and a last one with the figures."""

    reply: Reply
    body: GenerationFields
    media_type: str = EVENTS
    _has_new_line: bool = False

    async def whole(self) -> list[bytes]:
        """The answer as one object."""
        _, output = await self.reply.whole()
        return [encode(self._piece(output) | self._end(output))]

    def chunk(self, number: int, output: RequestOutput) -> bytes:
        """An event for a delta with contents, and at the end one with the figures."""
        self.reply.read(output)
        piece = self._piece(output)
        events = b""
        if piece["content"] or piece["tokens"] or "completion_probabilities" in piece:
            events = event(piece)
        if output.finished:
            piece.pop("completion_probabilities", None)
            events += event(piece | {"content": "", "tokens": []} | self._end(output))
        return events

    def end(self) -> bytes:
        """Nothing: no [DONE] follows."""
        return b""

    def failure(self, error: ApiError) -> bytes:
        """One event."""
        return event(envelope(error))

    def _piece(self, output: RequestOutput) -> dict[str, Any]:
        completion = self.reply.completion
        self._has_new_line = self._has_new_line or "\n" in completion.text
        piece = {
            "index": 0,
            "content": completion.text,
            "tokens": list(completion.token_ids) if self.body.return_tokens else [],
            "stop": False,
            "tokens_predicted": self._usage.completion_tokens,
            "tokens_evaluated": self._usage.prompt_tokens,
        }
        if self.body.n_probs and completion.logprobs is not None and completion.token_ids:
            piece["completion_probabilities"] = self._probabilities(completion, completion.logprobs)
        return piece

    def _probabilities(self, completion: CompletionOutput, rows: Sequence[PositionLogprobs]) -> list[dict[str, Any]]:
        """OpenAI's records, with the ids of tokens."""
        tokenizer, num_top = self._generation.context.engine.tokenizer, self.body.n_probs or 0
        records = chat_logprobs(tokenizer, completion.token_ids, rows, num_top)["content"]
        for token_id, position, record in zip(completion.token_ids, rows, records, strict=True):
            record["id"] = token_id
            for (best_id, _), entry in zip(best_tokens(position, num_top), record["top_logprobs"], strict=True):
                entry["id"] = best_id
        return list(records)

    def _end(self, output: RequestOutput) -> dict[str, Any]:
        completion, request = self.reply.completion, self._generation.requests[0]
        word = completion.stop_reason if isinstance(completion.stop_reason, str) else ""
        is_cut = completion.finish_reason == "length"
        return {
            "stop": True,
            "stop_type": "limit" if is_cut else "word" if word else "eos",
            "stopping_word": "" if is_cut else word,
            "model": self._generation.model_name,
            "prompt": request.prompt or "",
            "generation_settings": settings(request.params) | {"seed": request.seed, "stream": self.body.stream},
            "has_new_line": self._has_new_line,
            "truncated": False,
            "tokens_cached": self._usage.prompt_tokens + self._usage.completion_tokens,
            "timings": _timings(output.metrics, self._usage, output.num_cached_tokens),
        }

    @property
    def _generation(self) -> Generation:
        return self.reply.generation

    @property
    def _usage(self) -> Usage:
        return self.reply.generation.usage


def settings(params: SamplingParams) -> dict[str, Any]:
    """Parameters under llama.cpp's names. -1: as much as the model's length allows."""
    same = ("temperature", "top_k", "top_p", "min_p", "presence_penalty", "frequency_penalty", "ignore_eos")
    return {name: getattr(params, name) for name in same} | {
        "n_predict": -1 if params.max_tokens is None else params.max_tokens,
        "repeat_penalty": params.repetition_penalty,
        "stop": list(params.stop or ()),
        "n_probs": params.logprobs or 0,
    }


def _timings(metrics: RequestMetrics | None, usage: Usage, num_cached: int) -> dict[str, Any]:
    """Tokens, milliseconds and speeds of prompt and prediction; what was cached was not computed."""
    timings: dict[str, Any] = {"cache_n": num_cached}
    if metrics is None:
        return timings
    scheduled = metrics.first_scheduled_time or metrics.arrival_time
    first = metrics.first_token_time or scheduled
    end = metrics.last_token_time or first
    for name, num, seconds in (
        ("prompt", usage.prompt_tokens - num_cached, first - scheduled),
        ("predicted", usage.completion_tokens, end - first),
    ):
        timings |= {
            f"{name}_n": num,
            f"{name}_ms": 1e3 * seconds,
            f"{name}_per_token_ms": 1e3 * seconds / num if num else 0.0,
            f"{name}_per_second": num / seconds if seconds else 0.0,
        }
    return timings
