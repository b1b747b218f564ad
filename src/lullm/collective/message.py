"""Messages of any length from every member of a group, or every worker of a model, to all of them."""

import msgspec
import torch

from lullm.collective.collective import Collective
from lullm.collective.seat import Seat


def gather_bytes(group: Collective, data: bytes) -> list[bytes]:
    """The bytes of each member, in rank order. All members call it."""
    if group.size == 1:
        return [data]
    sizes = group.all_gather(torch.tensor([[len(data)]]))[0].tolist()
    row = torch.zeros((1, max(max(sizes), 1)), dtype=torch.uint8)
    if data:
        row[0, : len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    rows = group.all_gather(row).view(group.size, -1)
    return [bytes(each[:size].numpy()) for each, size in zip(rows, sizes, strict=True)]


def gather_from_workers(seat: Seat, data: bytes) -> list[bytes]:
    """The bytes of each worker of a model, by rank. All workers call it."""
    of_stage = gather_bytes(seat.tensor, data)
    stages = gather_bytes(seat.pipeline, msgspec.msgpack.encode(of_stage))
    return [found for stage in stages for found in msgspec.msgpack.decode(stage, type=list[bytes])]
