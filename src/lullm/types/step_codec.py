"""Plans and results as bytes (MessagePack), for workers in other processes. What is decoded equals what was encoded.

Sender and receiver must agree on the byte order (`PackedInts`) and on the version of lullm: fields go by place.
"""

from collections.abc import Callable

import msgspec

from lullm.types.step import StepPlan, StepResult

encode_plan: Callable[[StepPlan], bytes] = msgspec.msgpack.Encoder().encode
encode_result: Callable[[StepResult], bytes] = msgspec.msgpack.Encoder().encode
decode_plan = msgspec.msgpack.Decoder[StepPlan](StepPlan).decode
decode_result = msgspec.msgpack.Decoder[StepResult](StepResult).decode
"""Both raise msgspec.DecodeError: the bytes are no such message."""
