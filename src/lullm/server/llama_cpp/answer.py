"""CompletionAnswer: answers of POST /completion and /infill."""

import contextlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from lullm.server.error import ApiError
from lullm.server.llama_cpp.error import envelope
from lullm.server.llama_cpp.schema import GenerationFields
from lullm.server.openai.generation import Generation
from lullm.server.openai.logprob import best_tokens, chat_logprobs
from lullm.server.sse import EVENTS, encode, event
from lullm.types.outputs import CompletionOutput, PositionLogprobs, RequestMetrics, RequestOutput
from lullm.types.sampling_params import SamplingParams


@dataclass(slots=True)
class CompletionAnswer:
    """Each completion as one object, several of them in a list; streamed, as one for each delta and a last one with the
    figures.
    """

    generation: Generation
    body: GenerationFields
    media_type: str = EVENTS
    _num_tokens: Counter[int] = field(default_factory=Counter)
    _with_new_line: set[int] = field(default_factory=set)  # completions that have one, by their index

    async def whole(self) -> list[bytes]:
        """The answer as pieces of JSON, each of them one completion."""
        found: dict[int, bytes] = {}
        async with contextlib.aclosing(self.generation.last_outputs()) as outputs:
            async for number, output in outputs:
                for completion in output.outputs:
                    piece = self._piece(number, completion)
                    found[piece["index"]] = encode(piece | self._end(number, output, completion))
        if len(found) == 1:
            return list(found.values())
        pieces = [b"["]
        for index in sorted(found):
            pieces += [found[index], b","]
        return [*pieces[:-1], b"]"]

    def chunk(self, number: int, output: RequestOutput) -> bytes:
        """An event for each delta with contents, and at a completion's end one with the figures."""
        events = b""
        for completion in output.outputs:
            piece = self._piece(number, completion)
            if piece["content"] or piece["tokens"] or "completion_probabilities" in piece:
                events += event(piece)
            if completion.finish_reason is not None:
                piece.pop("completion_probabilities", None)
                events += event(piece | {"content": "", "tokens": []} | self._end(number, output, completion))
        return events

    def end(self) -> bytes:
        """Nothing: no [DONE] follows."""
        return b""

    def failure(self, error: ApiError) -> bytes:
        """One event."""
        return event(envelope(error))

    def _index(self, number: int, completion: CompletionOutput) -> int:
        return number * self.generation.requests[number].params.n + completion.index

    def _piece(self, number: int, completion: CompletionOutput) -> dict[str, Any]:
        index = self._index(number, completion)
        self._num_tokens[index] += len(completion.token_ids)
        if "\n" in completion.text:
            self._with_new_line.add(index)
        piece = {
            "index": index,
            "content": completion.text,
            "tokens": list(completion.token_ids) if self.body.return_tokens else [],
            "stop": False,
            "tokens_predicted": self._num_tokens[index],
            "tokens_evaluated": len(self.generation.requests[number].prompt_token_ids),
        }
        if self.body.n_probs and completion.logprobs is not None and completion.token_ids:
            piece["completion_probabilities"] = self._probabilities(completion, completion.logprobs)
        return piece

    def _probabilities(self, completion: CompletionOutput, rows: Sequence[PositionLogprobs]) -> list[dict[str, Any]]:
        """OpenAI's records, with the ids of tokens."""
        tokenizer, num_top = self.generation.context.engine.tokenizer, self.body.n_probs or 0
        records = chat_logprobs(tokenizer, completion.token_ids, rows, num_top)["content"]
        for token_id, position, record in zip(completion.token_ids, rows, records, strict=True):
            record["id"] = token_id
            for (best_id, _), entry in zip(best_tokens(position, num_top), record["top_logprobs"], strict=True):
                entry["id"] = best_id
        return list(records)

    def _end(self, number: int, output: RequestOutput, completion: CompletionOutput) -> dict[str, Any]:
        request, index = self.generation.requests[number], self._index(number, completion)
        num_prompt, num_predicted = len(request.prompt_token_ids), self._num_tokens[index]
        word = completion.stop_reason if isinstance(completion.stop_reason, str) else ""
        is_cut = completion.finish_reason == "length"
        return {
            "stop": True,
            "stop_type": "limit" if is_cut else "word" if word else "eos",
            "stopping_word": "" if is_cut else word,
            "model": self.generation.model_name,
            "prompt": request.prompt or "",
            "generation_settings": settings(request.params) | {"seed": request.seed, "stream": self.body.stream},
            "has_new_line": index in self._with_new_line,
            "truncated": False,
            "tokens_cached": num_prompt + num_predicted,
            "timings": _timings(output.metrics, num_prompt, num_predicted, output.num_cached_tokens),
        }


def settings(params: SamplingParams) -> dict[str, Any]:
    """Parameters under llama.cpp's names. -1: as much as the model's length allows."""
    same = ("temperature", "top_k", "top_p", "min_p", "presence_penalty", "frequency_penalty", "ignore_eos")
    return {name: getattr(params, name) for name in same} | {
        "n_predict": -1 if params.max_tokens is None else params.max_tokens,
        "repeat_penalty": params.repetition_penalty,
        "stop": list(params.stop or ()),
        "n_probs": params.logprobs or 0,
    }


def _timings(metrics: RequestMetrics | None, num_prompt: int, num_predicted: int, num_cached: int) -> dict[str, Any]:
    """Tokens, milliseconds and speeds of prompt and prediction; what was cached was not computed."""
    timings: dict[str, Any] = {"cache_n": num_cached}
    if metrics is None:
        return timings
    scheduled = metrics.first_scheduled_time or metrics.arrival_time
    first = metrics.first_token_time or scheduled
    end = metrics.last_token_time or first
    for name, num, seconds in (
        ("prompt", num_prompt - num_cached, first - scheduled),
        ("predicted", num_predicted, end - first),
    ):
        timings |= {
            f"{name}_n": num,
            f"{name}_ms": 1e3 * seconds,
            f"{name}_per_token_ms": 1e3 * seconds / num if num else 0.0,
            f"{name}_per_second": num / seconds if seconds else 0.0,
        }
    return timings
