"""QueueImage: all requests of an engine, and its blocks, as plain data; to bytes and back.

Times are of this process's `time.monotonic()`. The reader shifts them, so that the time in between does not count.
"""

import dataclasses
import functools
import json
from typing import Any

import msgspec
import xxhash

from lullm.engine.hibernation.text_image import RequestTextImage
from lullm.engine.process.message import WireOutput, WireRequest
from lullm.engine.process.output_codec import TextOf, decode_output, encode_output
from lullm.engine.process.request_codec import decode_request, encode_request
from lullm.errors import HibernationError, LullmError
from lullm.kv.image.image import BlockSpaceImage
from lullm.sched.image.group import GroupImage
from lullm.types.outputs import RequestOutput
from lullm.types.pooling.outputs import EngineOutput
from lullm.types.request import GenerateRequest
from lullm.types.sampling_params import SamplingParams


class RequestImage(msgspec.Struct, frozen=True, array_like=True):
    """A request. `prompt`: its text, which may hold lone surrogates."""

    request: WireRequest
    prompt: bytes | None


class UnfinishedImage(msgspec.Struct, frozen=True, array_like=True):
    """A request that has not ended, its sequences and their texts."""

    request: RequestImage
    group: GroupImage
    texts: RequestTextImage


class OutputImage(msgspec.Struct, frozen=True, array_like=True):
    """An output that nobody has fetched, and what it says of its request."""

    request_id: str
    prompt: bytes | None
    prompt_token_ids: list[int]
    output: WireOutput


class QueueImage(msgspec.Struct, frozen=True, array_like=True):
    """All of an engine's state but the contents of blocks.

    `unfinished`: in the order of their arrival. `seeds`: the state of the generator of seeds. `saved_s`: when the image
    was taken.
    """

    unfinished: list[UnfinishedImage]
    outputs: list[OutputImage]
    blocks: BlockSpaceImage
    seeds: tuple[int, list[int]]
    saved_s: float


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(QueueImage)


@functools.cache
def layout(kind: type = QueueImage) -> str:
    """A name for what a queue holds, or another kind: other fields, or other types of them, give another.

    A field with a default that is new, or gone, would otherwise be read as if nothing had been there.
    """
    schema = json.dumps(_without_words(msgspec.json.schema(kind)), sort_keys=True)
    return xxhash.xxh3_64_hexdigest(schema.encode())


def _without_words(schema: Any) -> Any:
    """Without docstrings."""
    if isinstance(schema, list):
        return [_without_words(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: _without_words(value)
        for name, value in schema.items()
        if name != "description" or not isinstance(value, str)
    }


def encode_queue(queue: QueueImage) -> bytes:
    """Raises HibernationError: a request holds what cannot be written."""
    try:
        return _ENCODER.encode(queue)
    except (TypeError, ValueError, OverflowError) as error:
        raise HibernationError(f"a request cannot be written down: {error}; the engine goes on") from error


def decode_queue(data: bytes) -> QueueImage:
    """Raises HibernationError: the bytes are no queue of this version."""
    try:
        return _DECODER.decode(data)
    except msgspec.DecodeError as error:
        raise HibernationError(f"the queue is damaged: {error}") from None


def take_request(request: GenerateRequest) -> RequestImage:
    """The image of a request, without what its caller alone reads."""
    return RequestImage(encode_request(request), _bytes(request.prompt))


def build_request(image: RequestImage, shift_s: float) -> GenerateRequest:
    """The request, which arrived `shift_s` later. Raises HibernationError: it is no request of this version."""
    try:
        request = decode_request(image.request)
    except (LullmError, TypeError, ValueError, KeyError) as error:
        raise HibernationError(f"a request cannot be read: {error}") from None
    prompt, arrival = _text(image.prompt), request.arrival_time + shift_s
    return dataclasses.replace(request, prompt=prompt, arrival_time=arrival)


def take_output(output: EngineOutput) -> OutputImage:
    """The image of an output."""
    prompt = output.prompt if isinstance(output, RequestOutput) else None
    return OutputImage(output.request_id, _bytes(prompt), list(output.prompt_token_ids), encode_output(0, output))


def build_output(image: OutputImage, shift_s: float, text_of: TextOf) -> EngineOutput:
    """The output. Raises HibernationError: it is none of this version."""
    request = GenerateRequest(
        image.request_id, _text(image.prompt), image.prompt_token_ids, SamplingParams(), seed=0, arrival_time=0.0
    )
    times = image.output.times
    shifted: Any = None if times is None else tuple(t if t is None else t + shift_s for t in times)
    try:
        return decode_output(msgspec.structs.replace(image.output, times=shifted), request, text_of)
    except (TypeError, ValueError) as error:
        raise HibernationError(f"an output of {image.request_id!r} cannot be read: {error}") from None


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode("utf-8", "surrogatepass")


def _text(data: bytes | None) -> str | None:
    try:
        return None if data is None else data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        raise HibernationError(f"a prompt cannot be read: {error}") from None
