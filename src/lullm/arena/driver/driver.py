"""The shared part of CUDA's, ROCm's and Ascend's back ends: drivers that reserve addresses and create memory
separately.

Each back end names the functions and structs of its driver. The order of calls, undoing and errors are here.
"""

import ctypes
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lullm.arena.backend import Backend, CopyKind, CopyStream
from lullm.errors import CacheSizeError, LullmError, UnsupportedError
from lullm.log import get_logger
from lullm.units import format_bytes, round_up

logger = get_logger(__name__)

Uint64Out = ctypes.POINTER(ctypes.c_uint64)
"""An output argument for an address or a handle, which are all 64 bits wide."""


class Library:
    """A driver's shared library, whose functions return 0 or an error code.

    Args:
        title: for messages: 'CUDA'.
        paths: names or paths to load; the first that loads is used.
        describe: (loaded library, code) -> the driver's own words for the code.
        out_of_memory, unsupported: the codes with this meaning.

    Raises:
        UnsupportedError: none of `paths` loads.
    """

    def __init__(
        self,
        title: str,
        paths: Sequence[str | Path],
        describe: Callable[[ctypes.CDLL, int], str],
        out_of_memory: Collection[int],
        unsupported: Collection[int],
    ):
        self.title = title
        self._describe = describe
        self._out_of_memory = out_of_memory
        self._unsupported = unsupported
        self._functions: dict[str, Any] = {}
        refusals = []
        for path in paths:
            try:
                self._library = ctypes.CDLL(str(path))
                return
            except OSError as error:
                refusals.append(str(error))
        raise UnsupportedError(f"no {title} driver on this machine ({'; '.join(refusals)}); install it, or use the CPU")

    def declare(self, name: str, *argument_types: Any) -> None:
        """Make `name` callable with arguments of these C types. Raises UnsupportedError if the library lacks it."""
        try:
            function = getattr(self._library, name)
        except AttributeError:
            raise UnsupportedError(
                f"this {self.title} driver has no {name}; it is too old, install a newer one"
            ) from None
        function.argtypes, function.restype = argument_types, ctypes.c_int
        self._functions[name] = function

    def call(self, name: str, *arguments: object, doing: str = "", of_host: bool = False) -> None:
        """Call a declared function. `doing` ('map 2.0 MiB') is its purpose, for errors; `of_host`: the host's memory.

        Raises:
            CacheSizeError: the device is out of memory. UnsupportedError: the device or driver cannot do this.
            LullmError: any other code.
        """
        code = self._functions[name](*arguments)
        if code == 0:
            return
        task = f" (to {doing})" if doing else ""
        text = f"{name}{task} failed with {code}: {self._describe(self._library, code)}"
        if code in self._out_of_memory:
            place = "the host" if of_host else f"the {self.title} device"
            raise CacheSizeError(f"{text}; free memory of {place} and try again, or ask for less")
        if code in self._unsupported:
            raise UnsupportedError(f"{text}; this device or its {self.title} driver cannot do that")
        raise LullmError(f"{text}; if it happens again, look for earlier {self.title} errors and restart the process")

    def output(self, name: str, *arguments: object, doing: str = "") -> int:
        """`call` a function whose first argument receives the result, an integer of at most 64 bits (little-endian)."""
        result = ctypes.c_uint64()
        self.call(name, ctypes.byref(result), *arguments, doing=doing)
        return result.value


def initialize_torch(title: str, initialize: Callable[[], object]) -> None:
    """Let torch create its state for a device, which the driver's calls need. Raises UnsupportedError: torch cannot."""
    try:
        initialize()
    except (RuntimeError, AssertionError) as error:
        raise UnsupportedError(
            f"this torch cannot use the {title} device ({error}); install a build that can"
        ) from error


@dataclass(frozen=True)
class MemoryFunctions:
    """The names of a driver's functions for virtual memory."""

    reserve: str
    create: str
    map: str
    set_access: str | None
    """None: mapped memory is accessible at once."""
    unmap: str
    release: str
    free: str
    takes_sizes: bool = True
    """`unmap` and `free` take the size, too."""
    reserve_flags: int = 0


@dataclass(frozen=True)
class PinFunctions:
    """The names of a driver's functions that pin host memory, and the flags for pinning."""

    pin: str
    unpin: str
    flags: int


@dataclass(frozen=True)
class StreamFunctions:
    """The names of a driver's functions for streams and events, and their flags (none: the function takes none)."""

    create: str
    synchronize: str
    destroy: str
    create_event: str
    record_event: str
    synchronize_event: str
    destroy_event: str
    stream_flags: tuple[int, ...] = ()
    event_flags: tuple[int, ...] = ()


@dataclass(frozen=True)
class DeviceDriver:
    """One device and the functions of its driver.

    `make_current` makes the device current on the calling thread. `properties` and `access` are the driver's structs.
    `copy_async` takes (destination, source, num_bytes, kind, stream handle). `pinning` None: `pin` is not supported.
    """

    library: Library
    memory: MemoryFunctions
    streams: StreamFunctions
    dlpack_device: tuple[int, int]
    make_current: Callable[[], None]
    granularity: int
    properties: ctypes.Structure
    access: ctypes.Structure | None
    copy_async: Callable[[int, int, int, CopyKind, int], None]
    pinning: PinFunctions | None = None


def device_backend(device: DeviceDriver, chunk_bytes: int) -> Backend:
    """The table for a device. Raises UnsupportedError if its driver lacks one of the functions."""
    _declare(device)
    return Backend(
        name=device.library.title,
        dlpack_device=device.dlpack_device,
        granularity=device.granularity,
        chunk_bytes=round_up(chunk_bytes, device.granularity),
        faults_in=False,
        reserve=lambda num_bytes: _reserve(device, num_bytes),
        create_and_map=lambda address, num_bytes: _create_and_map(device, address, num_bytes),
        unmap_and_release=lambda address, num_bytes, handle: _unmap_and_release(device, address, num_bytes, handle),
        copy=lambda *arguments: _copy(device, *arguments),
        free=lambda address, num_bytes: _free(device, address, num_bytes),
        open_stream=lambda: DeviceStream(device),
        pin=lambda address, num_bytes: _pin(device, address, num_bytes),
        unpin=lambda address: _unpin(device, address),
    )


def _declare(device: DeviceDriver) -> None:
    declare, memory, streams = device.library.declare, device.memory, device.streams
    address = handle = flags = ctypes.c_uint64
    size, struct = ctypes.c_size_t, ctypes.c_void_p
    sizes = (size,) if memory.takes_sizes else ()
    declare(memory.reserve, Uint64Out, size, size, address, flags)
    declare(memory.create, Uint64Out, size, struct, flags)
    declare(memory.map, address, size, size, handle, flags)
    if memory.set_access is not None:
        declare(memory.set_access, address, size, struct, size)
    declare(memory.unmap, address, *sizes)
    declare(memory.release, handle)
    declare(memory.free, address, *sizes)
    declare(streams.create, Uint64Out, *[ctypes.c_uint] * len(streams.stream_flags))
    declare(streams.create_event, Uint64Out, *[ctypes.c_uint] * len(streams.event_flags))
    declare(streams.record_event, handle, handle)
    for name in (streams.synchronize, streams.destroy, streams.synchronize_event, streams.destroy_event):
        declare(name, handle)
    if device.pinning is not None:
        declare(device.pinning.pin, address, size, ctypes.c_uint)
        declare(device.pinning.unpin, address)


def _reserve(device: DeviceDriver, num_bytes: int) -> int:
    device.make_current()
    names, doing = device.memory, f"reserve {format_bytes(num_bytes)}"
    return device.library.output(names.reserve, num_bytes, 0, 0, names.reserve_flags, doing=doing)


def _create_and_map(device: DeviceDriver, address: int, num_bytes: int) -> int:
    device.make_current()
    names, call = device.memory, device.library.call
    doing = f"create {format_bytes(num_bytes)}"
    handle = device.library.output(names.create, num_bytes, ctypes.byref(device.properties), 0, doing=doing)
    try:
        _map(device, address, num_bytes, handle)
    except LullmError:
        _or_log(lambda: call(names.release, handle))
        raise
    return handle


def _map(device: DeviceDriver, address: int, num_bytes: int, handle: int) -> None:
    names, call, doing = device.memory, device.library.call, f"map {format_bytes(num_bytes)}"
    call(names.map, address, num_bytes, 0, handle, 0, doing=doing)
    if names.set_access is None or device.access is None:
        return
    try:
        call(names.set_access, address, num_bytes, ctypes.byref(device.access), 1, doing=doing)
    except LullmError:
        _or_log(lambda: _unmap(device, address, num_bytes))
        raise


def _unmap(device: DeviceDriver, address: int, num_bytes: int) -> None:
    sizes = (num_bytes,) if device.memory.takes_sizes else ()
    device.library.call(device.memory.unmap, address, *sizes, doing=f"unmap {format_bytes(num_bytes)}")


def _unmap_and_release(device: DeviceDriver, address: int, num_bytes: int, handle: int) -> None:
    device.make_current()
    _unmap(device, address, num_bytes)
    try:
        device.library.call(device.memory.release, handle, doing=f"release {format_bytes(num_bytes)}")
    except LullmError:
        # The memory still exists with its contents: map it again, so that the failed call has changed nothing.
        _or_log(lambda: _map(device, address, num_bytes, handle))
        raise


def _free(device: DeviceDriver, address: int, num_bytes: int) -> None:
    device.make_current()
    sizes = (num_bytes,) if device.memory.takes_sizes else ()
    device.library.call(device.memory.free, address, *sizes, doing=f"free {format_bytes(num_bytes)} of addresses")


def _copy(device: DeviceDriver, destination: int, source: int, num_bytes: int, kind: CopyKind, stream: int) -> None:
    device.make_current()
    device.copy_async(destination, source, num_bytes, kind, stream)


def _pin(device: DeviceDriver, address: int, num_bytes: int) -> None:
    if device.pinning is None:
        raise UnsupportedError(f"host memory cannot be pinned for {device.library.title} devices yet")
    device.make_current()
    doing = f"pin {format_bytes(num_bytes)} of host memory"
    device.library.call(device.pinning.pin, address, num_bytes, device.pinning.flags, doing=doing, of_host=True)


def _unpin(device: DeviceDriver, address: int) -> None:
    if device.pinning is not None:
        device.make_current()
        device.library.call(device.pinning.unpin, address, doing="unpin host memory")


def _or_log(undo: Callable[[], None]) -> None:
    """Undo a step after a failure. A second failure is logged, so that it does not hide the first."""
    try:
        undo()
    except LullmError as error:
        logger.error("undoing it failed, too: %s", error)


@dataclass
class DeviceStream(CopyStream):
    """A stream of a device and the events that mark points in it."""

    device: DeviceDriver
    handle: int = field(init=False)
    _marks: set[int] = field(init=False, default_factory=set)

    def __post_init__(self) -> None:
        self.device.make_current()
        self.handle = self._library.output(self._names.create, *self._names.stream_flags)

    @property
    def _library(self) -> Library:
        return self.device.library

    @property
    def _names(self) -> StreamFunctions:
        return self.device.streams

    def mark(self) -> int:
        event = self._library.output(self._names.create_event, *self._names.event_flags)
        self._marks.add(event)
        self._library.call(self._names.record_event, event, self.handle)
        return event

    def wait(self, mark: int) -> None:
        self._library.call(self._names.synchronize_event, mark)
        self._marks.discard(mark)
        self._library.call(self._names.destroy_event, mark)

    def close(self) -> None:
        if self.handle:
            handle, self.handle = self.handle, 0
            try:
                self._library.call(self._names.synchronize, handle)
            finally:
                for mark in self._marks:
                    self._library.call(self._names.destroy_event, mark)
                self._marks.clear()
                self._library.call(self._names.destroy, handle)
