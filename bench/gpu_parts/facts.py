"""What the machine is: the first row, which tells a fault of lullm from one of the machine."""

import ctypes
import os
import platform
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpu_parts.line import Lines

TOOLS = ("git", "make", "cc", "nvidia-smi", "ncu", "nsys", "compute-sanitizer")
MODULES = ("msgspec", "xxhash", "transformers", "pytest", "xdist", "tokenizers", "safetensors", "jinja2", "llguidance")
ATTRIBUTES = {"host_pointer_for_registered_memory": 91, "virtual_memory": 102, "async_engines": 40, "integrated": 18}
"""CUdevice_attribute."""
MEMORY = ("MemTotal", "MemFree", "MemAvailable", "CommitLimit", "HugePages_Total", "Mlocked", "Unevictable")


def run(lines: Lines) -> None:
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "host": host, "memory": memory, "tools": tools, "gpu": gpu, "driver": driver,
    }  # fmt: skip
    lines.plan(list(parts))
    for name, part in parts.items():
        with lines.case(name) as figures:
            figures |= part()


def host() -> dict[str, Any]:
    """A kernel in a sandbox answers some calls without doing them: residency, huge pages, O_DIRECT."""
    version = text_of("/proc/version")
    return {
        "uname": " ".join(platform.uname()[:3]),
        "version": version,
        "is_sandboxed": "15:06:54 PST 2016" in version,  # what gVisor says always
        "hypervisor": "hypervisor" in text_of("/proc/cpuinfo"),
        "cores": len(os.sched_getaffinity(0)),
        "nodes": text_of("/sys/devices/system/node/online"),
        "cgroup_memory": text_of("/sys/fs/cgroup/memory.max"),
        "locked_memory": text_of("/proc/self/limits").partition("Max locked memory")[2].split("\n")[0].strip(),
        "python": platform.python_version(),
    }


def memory() -> dict[str, Any]:
    found = dict(line.split(":", 1) for line in text_of("/proc/meminfo").splitlines() if ":" in line)
    pages = Path("/sys/kernel/mm/transparent_hugepage")
    return {name: found[name].strip() for name in MEMORY if name in found} | {
        "huge_pages": text_of(pages / "enabled"),
        "huge_page_defrag": text_of(pages / "defrag"),
        "overcommit": text_of("/proc/sys/vm/overcommit_memory"),
    }


def tools() -> dict[str, Any]:
    from importlib.util import find_spec

    found = {name: shutil.which(name) is not None for name in TOOLS}
    return found | {f"module {name}": find_spec(name) is not None for name in MODULES}


def gpu() -> dict[str, Any]:
    import torch
    import triton

    at = torch.cuda.get_device_properties(0)
    free, total = torch.cuda.mem_get_info(0)
    found = {
        "name": torch.cuda.get_device_name(0),
        "capability": list(torch.cuda.get_device_capability(0)),
        "multiprocessors": at.multi_processor_count,
        "second_level_cache": at.L2_cache_size,
        "free_bytes": free,
        "total_bytes": total,
        "torch": torch.__version__,
        "triton": triton.__version__,
        "cuda": torch.version.cuda,
    }
    query = "driver_version,clocks.max.sm,clocks.max.mem,power.limit,mig.mode.current,ecc.mode.current,pci.bus_id"
    if shutil.which("nvidia-smi"):
        command = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"]
        said = subprocess.run(command, capture_output=True, text=True, timeout=8).stdout.strip()
        found |= dict(zip(query.split(","), said.split(", "), strict=False))
        bus = str(found.get("pci.bus_id", "")).lower()[-12:]
        found["node"] = text_of(f"/sys/bus/pci/devices/{bus}/numa_node")
    return found


def driver() -> dict[str, Any]:
    """What the driver says itself, and the piece of memory that it maps at least."""
    from lullm.device.cuda import gpu_backend

    backend = gpu_backend(0)
    found: dict[str, Any] = {"granularity": backend.granularity, "version": text_of("/proc/driver/nvidia/version")}
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return found | {"library": str(error)}
    for name, number in ATTRIBUTES.items():
        value = ctypes.c_int(-1)
        library.cuDeviceGetAttribute(ctypes.byref(value), number, 0)
        found[name] = value.value
    return found


def text_of(path: str | Path) -> str:
    """What the file says; empty if there is none, or none for us."""
    try:
        return Path(path).read_text().strip()[:4000]
    except OSError:
        return ""
