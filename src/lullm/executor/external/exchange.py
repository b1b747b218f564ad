"""Exchanges the answers of all processes over the groups of a seat."""

from lullm.collective.message import gather_from_workers
from lullm.collective.seat import Seat
from lullm.executor.remote.codec import decode, encode
from lullm.executor.workers import Answer
from lullm.types.wire.plain_error import error_of, plain_error


def exchange(seat: Seat, own: Answer) -> list[Answer]:
    """The answers of all processes, by rank. Every process calls it.

    A value that is not plain data is None in other processes.

    Raises:
        WorkerLostError: a process is lost.
    """
    rank = seat.placement.rank
    found = gather_from_workers(seat, _message_of(own, rank))
    return [own if number == rank else _told_in(message) for number, message in enumerate(found)]


def _message_of(answer: Answer, rank: int) -> bytes:
    if answer.error is None:
        try:
            return b"".join(encode([True, answer.value]))
        except TypeError:  # a caller's own method may return an object that only its own process can use
            return b"".join(encode([True, None]))
    return b"".join(encode([False, plain_error(answer.error, f"worker {rank}")]))


def _told_in(message: bytes) -> Answer:
    is_value, content = decode(memoryview(bytearray(message)))
    return Answer(content) if is_value else Answer(error=error_of(content))
