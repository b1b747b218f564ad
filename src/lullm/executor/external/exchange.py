"""Answers of all processes, told to each other over the groups of a seat."""

import msgspec

from lullm.collective.message import gather_bytes
from lullm.collective.seat import Seat
from lullm.executor.protocol import Answer
from lullm.executor.remote.codec import decode, encode
from lullm.types.wire.plain_error import error_of, plain_error


def exchange(seat: Seat, own: Answer, version: int = 0) -> tuple[list[Answer], list[int]]:
    """The answers of all, and the versions of their weights, by rank. Every process calls it.

    A value that is no plain data is None elsewhere.

    Raises:
        WorkerLostError: a process is lost.
    """
    rank = seat.placement.rank
    of_stage = gather_bytes(seat.tensor, _message_of(own, rank, version))
    stages = gather_bytes(seat.pipeline, msgspec.msgpack.encode(of_stage))
    found = [message for stage in stages for message in msgspec.msgpack.decode(stage, type=list[bytes])]
    answers, versions = zip(*map(_told_in, found), strict=True)
    return [own if number == rank else answer for number, answer in enumerate(answers)], list(versions)


def _message_of(answer: Answer, rank: int, version: int) -> bytes:
    if answer.error is None:
        try:
            return b"".join(encode([True, answer.value, version]))
        except TypeError:  # a caller's own method may return what only its own process can use
            return b"".join(encode([True, None, version]))
    return b"".join(encode([False, plain_error(answer.error, f"worker {rank}"), version]))


def _told_in(message: bytes) -> tuple[Answer, int]:
    is_value, content, version = decode(memoryview(bytearray(message)))
    return (Answer(content) if is_value else Answer(error=error_of(content))), version
