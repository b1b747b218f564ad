"""The first contact with the driver: arenas, a graph over one, pinned memory, copies over the bus.

No model and no kernel of attention: what fails here fails before all else.
"""

import atexit
import dataclasses
import threading
import time
from collections.abc import Callable
from typing import Any

import torch

from gpu_parts.line import Lines
from lullm.units import GIB, MIB


@dataclasses.dataclass(frozen=True, slots=True)
class Sizes:
    arena_bytes: int = 2 * GIB
    chunk_bytes: tuple[int, ...] = (16 * MIB, 64 * MIB, 256 * MIB)
    mapped_bytes: int = 2 * GIB
    pinned_bytes: tuple[int, ...] = (GIB, 8 * GIB)
    block_dims: tuple[int, int, int] = (16, 8, 128)  # block_size, Hkv, D


SIZES = Sizes()


def run(lines: Lines) -> None:
    from lullm.device.cuda import CudaDevice

    device = CudaDevice(0)
    cases: dict[str, Callable[[Any], dict[str, Any]]] = {
        "arena": arena_keeps_its_place, "second thread": arena_from_a_thread, "graph": graph_over_an_arena,
    }  # fmt: skip
    cases |= {f"map by {size // MIB} MiB": lambda d, size=size: map_times(d, size) for size in SIZES.chunk_bytes}
    cases |= {f"pin {size // MIB} MiB": lambda d, size=size: pin_times(d, size) for size in SIZES.pinned_bytes}
    cases["bus"] = bus_speeds
    cases["memory that outlives its arena"] = outlive
    lines.plan(list(cases))
    for name, case in cases.items():
        with lines.case(name) as figures:
            figures |= case(device)


def arena_keeps_its_place(device: Any) -> dict[str, Any]:
    started = time.perf_counter()
    arena = device.new_arena("contact", SIZES.arena_bytes)
    made_s = time.perf_counter() - started
    x = arena.empty((SIZES.arena_bytes // 4,), torch.float32)
    for value in (3.0, 5.0):
        x.fill_(value)
        assert x[0].item() == x[-1].item() == value and x.sum(dtype=torch.float64).item() == value * x.numel()
        address = x.data_ptr()
        device.synchronize()
        before = torch.cuda.mem_get_info()[0]
        arena.release()
        freed = torch.cuda.mem_get_info()[0] - before
        arena.map()
        assert x.data_ptr() == address and arena.base_address == address, "it woke up elsewhere"
    x.fill_(7.0)
    assert x[1].item() == 7.0
    device.synchronize()
    arena.close()
    return {"create_s": made_s, "freed_bytes": freed, "of_bytes": SIZES.arena_bytes}


def arena_from_a_thread(device: Any) -> dict[str, Any]:
    """The driver's context is current by thread."""
    arena = device.new_arena("contact", 64 * MIB)
    x = arena.empty((1024,), torch.float32).fill_(1.0)
    found: list[Any] = []

    def cycle() -> None:
        try:
            device.synchronize()
            arena.release()
            arena.map()
            found.append(x.fill_(2.0).sum().item())
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=cycle)
    thread.start()
    thread.join()
    assert found == [2048.0], found
    assert x.sum().item() == 2048.0
    arena.close()
    return {}


def graph_over_an_arena(device: Any) -> dict[str, Any]:
    """Recorded once; right after the memory below it was given back, mapped again, and filled with something else."""
    arena = device.new_arena("contact", 64 * MIB)
    x, y = (arena.empty((1 << 16,), torch.float32) for _ in "xy")
    x.fill_(1.0)
    y.zero_()
    graph = torch.cuda.CUDAGraph()
    device.synchronize()
    with torch.cuda.graph(graph):
        y.copy_(x)
        y.mul_(3.0)
    for value in (1.0, 4.0):
        x.fill_(value)
        graph.replay()
        device.synchronize()
        assert y.eq(3 * value).all().item(), value
        arena.release()
        arena.map()
    del graph
    arena.close()
    return {}


def map_times(device: Any, chunk_bytes: int) -> dict[str, Any]:
    """Milliseconds per chunk: create, map and access; unmap and release."""
    from lullm.arena.arena import Arena

    backend = device.new_arena("contact", 1).backend
    arena = Arena(backend, "contact", SIZES.mapped_bytes, chunk_bytes)
    times: dict[str, list[float]] = {"unmap": [], "map": []}
    for _ in range(3):
        for name, work in (("unmap", arena.release), ("map", arena.map)):
            started = time.perf_counter()
            work()
            times[name].append(1e3 * (time.perf_counter() - started) / arena.num_chunks)
    arena.close()
    return {f"{name}_ms": min(found) for name, found in times.items()} | {"first_unmap_ms": times["unmap"][0]}


def pin_times(device: Any, num_bytes: int) -> dict[str, Any]:
    """GB/s of finding pages (`populate`), of pinning and unpinning, and of giving the pages back."""
    from lullm.arena.pinned import PinnedArena

    spent: dict[str, float] = {}

    def timed(name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            started = time.perf_counter()
            try:
                return work(*args)
            finally:
                spent[name] = time.perf_counter() - started

        return run

    plain = device.new_arena("contact", 1).backend
    backend = dataclasses.replace(plain, pin=timed("pin", plain.pin), unpin=timed("unpin", plain.unpin))
    arena: Any = None

    def create() -> None:
        nonlocal arena
        arena = PinnedArena(backend, "contact", num_bytes)

    timed("create", create)()
    is_pinned = arena.empty((4096,), torch.uint8).is_pinned()
    timed("release", arena.release)()
    timed("again", arena.map)()
    arena.close()
    spent["populate"] = spent["create"] - spent["pin"]
    rates = {f"{name}_gb_per_s": num_bytes / max(seconds, 1e-9) / 1e9 for name, seconds in spent.items()}
    return rates | {"torch_says_pinned": is_pinned, "create_s": spent["create"]}


def bus_speeds(device: Any) -> dict[str, Any]:
    """Blocks over the bus by the kernel and by a copy engine, both ways, and whether the bytes arrive."""
    from lullm.ops.cache.layer_cache import LayerCache
    from lullm.ops.triton.block_copy import swap_blocks

    num_bytes = min(SIZES.pinned_bytes[0], SIZES.arena_bytes) // 2
    block_bytes = SIZES.block_dims[0] * SIZES.block_dims[1] * SIZES.block_dims[2] * 2
    dims = (num_bytes // block_bytes, *SIZES.block_dims)
    pinned, arena = device.new_host_arena("contact", num_bytes), device.new_arena("contact", num_bytes)
    host, on_device = (a.empty(dims, torch.float16) for a in (pinned, arena))
    caches = [LayerCache(side, side) for side in (host, on_device)]
    pairs = [(i, i) for i in range(dims[0])]
    on_device.copy_(torch.arange(dims[0], device="cuda").view(-1, 1, 1, 1) % 1000)
    figures = {}
    moves: dict[str, Callable[[], Any]] = {
        "kernel_to_host": lambda: swap_blocks([caches[1]], [caches[0]], pairs),
        "kernel_to_device": lambda: swap_blocks([caches[0]], [caches[1]], pairs),
        "copy_to_host": lambda: host.copy_(on_device, non_blocking=True),
        "copy_to_device": lambda: on_device.copy_(host, non_blocking=True),
    }
    for name, move in moves.items():
        seconds = []
        for _ in range(3):
            device.synchronize()
            started = time.perf_counter()
            move()
            device.synchronize()
            seconds.append(time.perf_counter() - started)
        figures[f"{name}_gb_per_s"] = num_bytes / min(seconds) / 1e9
        first_values = on_device[:, -1, -1, -1].cpu()
        assert torch.equal(first_values, (torch.arange(dims[0]) % 1000).half()), name
        assert torch.equal(host[:, -1, -1, -1].clone(), first_values), name
    pinned.close()
    arena.close()
    return figures


def outlive(device: Any) -> dict[str, Any]:
    """A tensor that is dropped while the process ends, long after its arena was closed: the row's exit status."""
    arenas = device.new_arena("contact", 4 * MIB), device.new_host_arena("contact", 4 * MIB)
    tensors = [arena.empty((1024,), torch.uint8) for arena in arenas]
    for arena in arenas:
        arena.close()
    atexit.register(tensors.clear)
    return {}
