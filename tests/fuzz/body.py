"""Hostile JSON bodies: a valid one, and some of its values replaced by what nobody should send."""

import copy
import json
import random
from typing import Any

from .dialect import DIALECT_FIELDS, DIALECT_PATHS, dialect_body

PATHS = (
    "/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize", "/v1/embeddings", "/score", "/rerank",
    *DIALECT_PATHS,
)  # fmt: skip
ADMIN_PATHS = ("/sleep", "/wake_up", "/pause", "/resume", "/collective_rpc", "/reset_prefix_cache", "/sleep/explain")
EVIL: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2, 10**9, 2**63, -(2**63) - 1, 10**400, 0.5, -0.0, 1e308, "", "x", "\x00", "\ud800",
    "1_0", "\u0661", "<|im_end|>", "a" * 5000, [], [[]], [None], [""], ["x"] * 300, [1] * 5000, [-1], [10**12], {},
    {"a": 1}, {"type": "text"}, {"0": 1e9}, [[1], ["x"]],
)  # fmt: skip
FORMS: tuple[dict[str, Any], ...] = (
    {"response_format": {"type": "json_object"}},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "array"}}}},
    {"structured_outputs": {"regex": "(a|b){2,5}"}}, {"structured_outputs": {"choice": ["yes", "no"]}},
    {"structured_outputs": {"json": {"type": "object", "properties": {"a": {"enum": [1, None]}}}}},
    {"structured_outputs": {"grammar": 'root ::= "x" [0-9]+'}}, {"guided_json": {"type": "integer"}},
)  # fmt: skip
HOSTILE_FORMS: tuple[dict[str, Any], ...] = (
    {"regex": "((a{100}){100}){100}"}, {"regex": "("}, {"json": {"$ref": "#"}}, {"json": {"$ref": "#/$defs/a"}},
    {"regex": "(a{1000}b{1000}){1000}"}, {"json": {"enum": []}}, {"grammar": "start: start start"}, {"grammar": "%%"},
    {"structural_tag": '{"structures": [], "triggers": [""]}'}, {"choice": ["\x00", "\ud800"]},
)  # fmt: skip
FIELDS = (
    "n", "best_of", "temperature", "top_p", "top_k", "min_p", "seed", "stop", "stop_token_ids", "max_tokens",
    "min_tokens", "logprobs", "top_logprobs", "prompt_logprobs", "echo", "logit_bias", "allowed_token_ids", "bad_words",
    "presence_penalty", "frequency_penalty", "repetition_penalty", "beam_width", "length_penalty", "early_stopping",
    "priority", "keep_alive", "stream", "stream_options", "user", "tools", "response_format", "suffix", "model",
    "messages", "prompt", "tokens", "add_special_tokens", "level", "mode", "tags", "method", "whatever",
    "input", "dimensions", "encoding_format", "normalize", "use_activation", "truncate_prompt_tokens", "query",
    "structured_outputs", "guided_regex", "documents", "queries", "top_n", "instruction", "split_special_tokens",
    *DIALECT_FIELDS,
)  # fmt: skip


def valid_body(rng: random.Random, path: str) -> dict[str, Any]:
    """A body that the endpoint takes, for a few tokens."""
    text = "".join(rng.choices("abcdefg hijk\n\u20ac\U0001f600", k=rng.randrange(1, 40)))
    body: dict[str, Any]
    if path in DIALECT_PATHS:
        return dialect_body(rng, path, text)
    if path == "/tokenize":
        return {"prompt": text, "return_token_strs": rng.random() < 0.5}
    if path == "/detokenize":
        return {"tokens": rng.choices(range(300), k=5)}
    if path == "/v1/embeddings":
        return {"input": rng.choice([text, [text, "b"], [5, 6, 7], [[5, 6], [7]]]), "dimensions": rng.choice([8, 64])}
    if path == "/score":
        return {"text_1": text, "text_2": rng.choice([text, [text, "b"]])}
    if path == "/rerank":
        return {"query": text, "documents": [text, {"text": "b"}], "top_n": rng.choice([0, 1, 9])}
    if path.endswith("chat/completions"):
        body = {"messages": [{"role": rng.choice(["user", "system", "assistant"]), "content": text}]}
    else:
        body = {"prompt": rng.choice([text, [text, "b"], [5, 6, 7], [[5, 6], [7]]])}
    body |= {"max_tokens": rng.choice([1, 5, 30]), "temperature": rng.choice([0, 1])}
    if rng.random() < 0.4:
        body["stream"] = True
    if rng.random() < 0.3:
        body |= copy.deepcopy(rng.choice(FORMS))
    return body


def hostile_body(rng: random.Random, path: str) -> bytes:
    """One to four values of a valid body replaced or added; now and then bytes that are no JSON."""
    body = valid_body(rng, path)
    if rng.random() < 0.1:
        body["structured_outputs"] = copy.deepcopy(rng.choice(HOSTILE_FORMS))
    for _ in range(rng.randrange(1, 5)):
        _spoil(rng, body)
    raw = json.dumps(body).encode()
    trick = rng.random()
    if trick < 0.05:
        return raw[: rng.randrange(len(raw))]
    if trick < 0.1:
        place = rng.randrange(len(raw))
        return raw[:place] + rng.randbytes(3) + raw[place:]
    if trick < 0.13:
        return b'{"prompt":' + b"[" * 10_000 + b"]" * 10_000 + b"}"
    if trick < 0.16:
        return raw.replace(b": ", b": NaN, ", 1)
    return raw


def _spoil(rng: random.Random, body: dict[str, Any]) -> None:
    """Replace a value, at any depth, or add a field."""
    here: Any = body
    while True:
        keys = list(here) if isinstance(here, dict) else list(range(len(here)))
        if isinstance(here, dict) and (not keys or rng.random() < 0.4):
            here[rng.choice(FIELDS)] = copy.deepcopy(rng.choice(EVIL))
            return
        if not keys:
            return
        key = rng.choice(keys)
        if isinstance(here[key], (dict, list)) and rng.random() < 0.5:
            here = here[key]
        else:
            here[key] = copy.deepcopy(rng.choice(EVIL))
            return
