"""The same requests to two OpenAI servers: which keys, types and status codes differ.

    python bench/peer/fields.py http://127.0.0.1:8001 http://127.0.0.1:8000 --model NAME

Both serve the same model under the same name; vLLM with `VLLM_SERVER_DEV_MODE=1`, and with sleep mode if it has one.
A line of the output is a place within answers at which they differ, and the requests whose answers do. A field that is
null and one that is missing are the same.
"""

import argparse
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

ASK = {"messages": [{"role": "user", "content": "Name a colour."}], "max_tokens": 4, "temperature": 0}
WRITE = {"prompt": "The sky is", "max_tokens": 4, "temperature": 0}
TOOL = {
    "type": "function",
    "function": {"name": "pick", "parameters": {"type": "object", "properties": {"n": {"type": "integer"}}}},
}
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
FORM = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "strict": True}}
STREAM = {"stream": True, "stream_options": {"include_usage": True}}
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
CASES: dict[str, tuple[str, str, Any]] = {
    "chat": ("POST", CHAT, ASK),
    "chat, n": ("POST", CHAT, ASK | {"n": 2, "temperature": 1, "seed": 1}),
    "chat, log-probabilities": ("POST", CHAT, ASK | {"logprobs": True, "top_logprobs": 2}),
    "chat, stream": ("POST", CHAT, ASK | STREAM),
    "chat, stream, log-probabilities": ("POST", CHAT, ASK | STREAM | {"logprobs": True, "top_logprobs": 1}),
    "chat, stream, running usage": (
        "POST",
        CHAT,
        ASK | {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    ),
    "chat, ids": ("POST", CHAT, ASK | {"return_token_ids": True}),
    "chat, tools": (
        "POST",
        CHAT,
        ASK | {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "pick"}}, "max_tokens": 40},
    ),
    "chat, tools, stream": (
        "POST",
        CHAT,
        ASK | STREAM | {"tools": [TOOL], "tool_choice": "required", "max_tokens": 60},
    ),
    "chat, form": ("POST", CHAT, ASK | {"response_format": FORM, "max_tokens": 30}),
    "chat, stop": ("POST", CHAT, ASK | {"stop": ["e"], "max_tokens": 20}),
    "chat, prompt log-probabilities": ("POST", CHAT, ASK | {"prompt_logprobs": 1}),
    "text": ("POST", TEXT, WRITE),
    "text, list": ("POST", TEXT, WRITE | {"prompt": ["The sky", "The sea"]}),
    "text, ids": ("POST", TEXT, WRITE | {"prompt": [9707, 11], "return_token_ids": True}),
    "text, log-probabilities": ("POST", TEXT, WRITE | {"logprobs": 2}),
    "text, echo": ("POST", TEXT, WRITE | {"echo": True, "logprobs": 1}),
    "text, stream": ("POST", TEXT, WRITE | STREAM),
    "text, form": ("POST", TEXT, WRITE | {"structured_outputs": {"choice": ["red", "blue"]}}),
    "text, prompt log-probabilities": ("POST", TEXT, WRITE | {"prompt_logprobs": 1}),
    "error: no model": ("POST", TEXT, WRITE | {"model": "nobody"}),
    "error: no messages": ("POST", CHAT, {"max_tokens": 1}),
    "error: type": ("POST", CHAT, ASK | {"temperature": "hot"}),
    "error: range": ("POST", CHAT, ASK | {"temperature": -1}),
    "error: too long": ("POST", TEXT, WRITE | {"prompt": "a b " * 3000}),
    "error: no JSON": ("POST", CHAT, b"{"),
    "error: no path": ("GET", "/v1/nowhere", None),
    "error: method": ("GET", CHAT, None),
    "models": ("GET", "/v1/models", None),
    "tokenize": ("POST", "/tokenize", {"prompt": "The sky", "return_token_strs": True}),
    "tokenize chat": ("POST", "/tokenize", {"messages": ASK["messages"]}),
    "detokenize": ("POST", "/detokenize", {"tokens": [9707, 11]}),
    "version": ("GET", "/version", None),
    "health": ("GET", "/health", None),
    "load": ("GET", "/load", None),
    "ping": ("GET", "/ping", None),
    "is_sleeping": ("GET", "/is_sleeping", None),
    "sleep": ("POST", "/sleep?level=1", None),
    "is_sleeping, asleep": ("GET", "/is_sleeping", None),
    "wake_up": ("POST", "/wake_up", None),
    "reset_prefix_cache": ("POST", "/reset_prefix_cache", None),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("first", help="URL of a server")
    parser.add_argument("second", help="URL of the server that is compared with it")
    parser.add_argument("--model", required=True, help="the name by which both serve the model")
    parser.add_argument("--only", help="cases whose names hold this")
    args = parser.parse_args()
    asked = {name: case for name, case in CASES.items() if not args.only or args.only in name}
    found: dict[str, list[str]] = {}
    for name, (method, path, body) in asked.items():
        if isinstance(body, dict):
            body = {"model": args.model} | body
        one, other = (answer(url, method, path, body) for url in (args.first, args.second))
        for line in differences(one, other, ""):
            found.setdefault(line, []).append(name)
    for line, names in found.items():
        print(f"{line}   ({'; '.join(names) if len(names) < 4 else f'{len(names)} requests'})")
    num_same = len(asked.keys() - {name for names in found.values() for name in names})
    print(f"{num_same} of {len(asked)} requests have answers of the same form")


def answer(url: str, method: str, path: str, body: Any) -> dict[str, Any]:
    """Status and body; of a stream the form of its chunks joined, and its last event."""
    data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    request = urllib.request.Request(url + path, data, {"Content-Type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            status, text = response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        status, text = error.code, error.read().decode()
    if text.startswith("data: "):
        events = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
        chunks = [json.loads(event) for event in events if event != "[DONE]"]
        usage = [chunk for chunk in chunks if not chunk.get("choices")]
        return {
            "status": status,
            "first": chunks[0],
            "last": chunks[len(chunks) - 1 - len(usage)],
            "usage": usage,
            "end": events[-1],
        }
    try:
        return {"status": status, "body": json.loads(text)}
    except ValueError:
        return {"status": status, "body": text}


def differences(one: Any, other: Any, path: str) -> Iterator[str]:
    """Where two answers differ in form: `path: first -> second`."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in sorted(one.keys() | other.keys()):
            where = f"{path}.{key}" if path else str(key)
            yield from differences(one.get(key), other.get(key), where)
    elif isinstance(one, list) and isinstance(other, list):
        if one and other:
            yield from differences(one[0], other[0], path + "[]")
        elif bool(one) != bool(other):
            yield f"{path}: {said(one)} -> {said(other)}"
    elif kind(one) != kind(other) or (path == "status" and one != other):
        yield f"{path}: {said(one)} -> {said(other)}"


def kind(value: Any) -> str:
    return "number" if type(value) in (int, float) else type(value).__name__


def said(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) < 60 else text[:57] + "..."


if __name__ == "__main__":
    main()
