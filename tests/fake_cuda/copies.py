"""Copies between host and device that end late: when the host has waited for them, and not before."""

import traceback
from dataclasses import dataclass
from typing import Any

import torch

from fake_cuda.tensors import address_of, plain, spoil, unseen


@dataclass
class _Flight:
    stream: Any
    count: int
    host: torch.Tensor  # plain
    content: torch.Tensor  # what is to arrive there, or what was read from there
    arrives: bool
    where: str


class LateCopies:
    """Those whose end the host does not know yet.

    A copy to the host leaves rubbish there until it ends. A copy from the host must find its source unchanged then:
    until that point a real one may still be reading it.
    """

    def __init__(self, faults):
        self._faults = faults
        self._flights = []

    def to_host(self, stream, target):
        """`target` holds the content already; it is taken away until the host has waited."""
        target = plain(target)
        self._add(stream, target, arrives=True)
        spoil(target)

    def from_host(self, stream, source):
        source = plain(source)
        self.settle(source)
        self._add(stream, source, arrives=False)

    def settle(self, tensor):
        """The device, or the host after a wait, reads this host memory in the order of the stream."""
        address = address_of(tensor)
        for flight in [f for f in self._flights if f.arrives and address_of(f.host) == address]:
            self._end(flight)

    def land(self, seen):
        for flight in [f for f in self._flights if seen.get(f.stream, 0) >= f.count]:
            self._end(flight)

    def _add(self, stream, host, arrives):
        where = "".join(traceback.format_stack(limit=14)[:-4])
        with unseen():
            content = host.clone()
        self._flights.append(_Flight(stream, stream.count, host, content, arrives, where))

    def _end(self, flight):
        self._flights.remove(flight)
        with unseen():
            if flight.arrives:
                flight.host.copy_(flight.content)
            elif not torch.equal(_bytes(flight.host), _bytes(flight.content)):
                self._faults.append(f"host memory was written before a copy out of it was done:\n{flight.where}")


def _bytes(tensor):
    return tensor.contiguous().view(-1).view(torch.uint8)
