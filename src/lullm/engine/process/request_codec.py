"""Requests as data: the fields that the engine reads, without those that only the caller reads."""

import dataclasses
from typing import Any

from lullm.engine.process.message import WireRequest
from lullm.types.lora.request import LoRARequest
from lullm.types.reply.form import ReplyForm
from lullm.types.reply.rules import ReplyRules
from lullm.types.request import GenerateRequest
from lullm.types.sampling_params import OutputKind, SamplingParams

_AT_HOME = frozenset({"bad_words", "structured_outputs", "truncate_prompt_tokens"})
"""Parameters that are sent in another form: `bad_words_ids`, `guide` and the prompt."""
_SENT = tuple(field.name for field in dataclasses.fields(SamplingParams) if field.name not in _AT_HOME)
_OTHERWISE = frozenset({"params", "priority", "cache_salt", "lora"})
_SAME = tuple(
    field.name
    for field in dataclasses.fields(GenerateRequest)
    if field.name in WireRequest.__struct_fields__ and field.name not in _OTHERWISE
)
"""Fields that are sent as they are."""
_DEFAULTS = SamplingParams()
_LARGEST = (1 << 63) - 1


def encode_request(request: GenerateRequest) -> WireRequest:
    """Encode a request, without the prompt's text and the rules for reading the reply."""
    reply = request.reply
    return WireRequest(
        **{name: getattr(request, name) for name in _SAME},
        token_ids=request.prompt_token_ids,
        params=_encode_params(request.params),
        priority=max(-_LARGEST, min(request.priority, _LARGEST)),
        cache_salt=_bytes(request.cache_salt),
        thinking=reply.thinking if reply else None,
        shown_token_ids=tuple(reply.shown_token_ids) if reply else (),
        lora=None if request.lora is None else dataclasses.astuple(request.lora),
    )


def decode_request(wire: WireRequest) -> GenerateRequest:
    """The request, for the engine. Raises InvalidRequestError, as `SamplingParams` does."""
    reply = None
    if wire.thinking is not None or wire.shown_token_ids:
        reply = ReplyRules(ReplyForm(), thinking=wire.thinking, shown_token_ids=frozenset(wire.shown_token_ids))
    return GenerateRequest(
        **{name: getattr(wire, name) for name in _SAME},
        prompt=None,
        prompt_token_ids=wire.token_ids,
        params=_decode_params(wire.params),
        priority=wire.priority,
        cache_salt=_text(wire.cache_salt),
        reply=reply,
        lora=None if wire.lora is None else LoRARequest(*wire.lora),
    )


def _encode_params(params: SamplingParams) -> dict[str, Any]:
    values = {name: getattr(params, name) for name in _SENT}
    changed = {name: value for name, value in values.items() if value != getattr(_DEFAULTS, name)}
    if "stop" in changed:
        changed["stop"] = [_bytes(stop) for stop in changed["stop"]]
    if "output_kind" in changed:
        changed["output_kind"] = params.output_kind.value
    return changed


def _decode_params(values: dict[str, Any]) -> SamplingParams:
    if "stop" in values:
        values["stop"] = [_text(stop) for stop in values["stop"]]
    if "output_kind" in values:
        values["output_kind"] = OutputKind(values["output_kind"])
    return SamplingParams(**values)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogatepass")
