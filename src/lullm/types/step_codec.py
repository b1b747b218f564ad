"""Plans and results as bytes (MessagePack), for workers in other processes. What is decoded equals what was encoded.

Sender and receiver must agree on the byte order (`PackedInts`) and on the version of lullm: fields go by place.
"""

import msgspec

from lullm.types.step import StepPlan, StepResult

_encoder = msgspec.msgpack.Encoder()
_plan_decoder = msgspec.msgpack.Decoder(StepPlan)
_result_decoder = msgspec.msgpack.Decoder(StepResult)


def encode_plan(plan: StepPlan) -> bytes:
    return _encoder.encode(plan)


def decode_plan(data: bytes | memoryview) -> StepPlan:
    """Raises msgspec.DecodeError: these are not the bytes of a plan."""
    return _plan_decoder.decode(data)


def encode_result(result: StepResult) -> bytes:
    return _encoder.encode(result)


def decode_result(data: bytes | memoryview) -> StepResult:
    """Raises msgspec.DecodeError: these are not the bytes of a result."""
    return _result_decoder.decode(data)
