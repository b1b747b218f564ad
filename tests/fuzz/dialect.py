"""Bodies of other servers' dialects, and how the streams of each end."""

import random
from typing import Any

DIALECT_PATHS = (
    "/v1/responses", "/v1/responses/input_tokens", "/v1/messages", "/v1/messages/count_tokens", "/api/chat",
    "/api/generate", "/api/embed", "/completion", "/apply-template",
)  # fmt: skip
DIALECT_FIELDS = (
    "system", "stop_sequences", "thinking", "output_config", "tool_choice", "cache_control", "options", "format",
    "think", "raw", "images", "num_predict", "num_ctx", "repeat_penalty", "n_predict", "n_probs", "grammar",
    "json_schema", "return_tokens", "instructions", "max_output_tokens", "include", "reasoning", "text", "metadata",
    "previous_response_id", "role", "content", "type", "id", "call_id", "arguments", "output", "summary",
)  # fmt: skip
_LAST_TYPES = {"message_stop", "response.completed", "response.incomplete", "response.failed", "error"}


def dialect_body(rng: random.Random, path: str, text: str) -> dict[str, Any]:
    """A body that the endpoint takes, for a few tokens."""
    num, stream = rng.choice([1, 5, 30]), rng.random() < 0.5
    messages = [{"role": rng.choice(["user", "assistant"]), "content": text}, {"role": "user", "content": "b"}]
    if path.startswith("/v1/messages"):
        blocks = [{"type": "text", "text": text}, {"type": "tool_result", "tool_use_id": "1", "content": "x"}]
        body: dict[str, Any] = {
            "model": "model",
            "messages": [{"role": "user", "content": blocks[: rng.randrange(1, 3)]}],
        }
        return body if path.endswith("tokens") else body | {"max_tokens": num, "stream": stream}
    if path.startswith("/v1/responses"):
        items = [
            {"role": "user", "content": [{"type": "input_text", "text": text}]},
            {"type": "reasoning", "id": "r", "summary": []},
            {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "1", "output": "x"},
        ]
        body = {"input": rng.choice([text, messages, items])}
        return body if path.endswith("tokens") else body | {"max_output_tokens": num, "stream": stream}
    if path == "/api/embed":
        return {"model": "model", "input": rng.choice([text, [text, "b"]])}
    if path.startswith("/api/"):
        asked = {"messages": messages} if path.endswith("chat") else {"prompt": text, "raw": rng.random() < 0.5}
        return asked | {"model": "model:latest", "stream": stream, "options": {"num_predict": num, "top_k": 3}}
    if path == "/apply-template":
        return {"messages": messages}
    asked = {"input_prefix": text, "input_suffix": "b"} if path == "/infill" else {"prompt": rng.choice([text, [5, 6]])}
    return asked | {
        "n_predict": num,
        "stream": stream,
        "logit_bias": rng.choice([[], [[5, 1.5], [6, False]], {"7": 1}]),
    }


def problem(content: dict[str, Any]) -> str:
    """The message of an error in any dialect. Raises AssertionError: there is none."""
    error = content["error"]
    message = error if isinstance(error, str) else error["message"]
    assert message and content.keys() <= {"error", "type"}, content
    return str(message)


def is_last(event: Any) -> bool:
    """Whether an event, or a line, ends its stream; OpenAI's older dialect has [DONE] instead."""
    return (
        "error" in event or event.get("type") in _LAST_TYPES or event.get("stop") is True or event.get("done") is True
    )
