"""`lullm doctor`: the machine's parts, the ones that lullm will use, and advice for missing ones."""

import argparse
import dataclasses
import importlib.metadata
import importlib.util
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import lullm
from lullm.config.engine import EngineConfig
from lullm.errors import ConfigError, LullmError
from lullm.machine import gpu, memory, processor
from lullm.machine.imports import failed_imports
from lullm.ops.cpu import library
from lullm.units import GIB, format_bytes

Status = Literal["ok", "advice", "problem"]

UNUSABLE = 1
REQUIRED = {
    "torch": ("torch", "2.11"),
    "numpy": ("numpy", "1.26"),
    "safetensors": ("safetensors", "0.5"),
    "tokenizers": ("tokenizers", "0.23"),
    "huggingface_hub": ("huggingface_hub", "0.30"),
    "jinja2": ("jinja2", "3.1.6"),
    "fastapi": ("fastapi", "0.115"),
    "uvicorn": ("uvicorn", "0.30"),
    "httptools": ("httptools", "0.6.3"),
    "prometheus-client": ("prometheus_client", "0.20"),
    "tqdm": ("tqdm", "4.66"),
    "pyyaml": ("yaml", "6"),
    "xxhash": ("xxhash", "3.4"),
    "msgspec": ("msgspec", "0.19"),
    "llguidance": ("llguidance", "1.7"),
}
"""Distribution -> (module, oldest version that works)."""

_ROOT = Path("/")
_LEVELS = {  # level of `ops.cpu.library` -> the processor flags that it needs
    "avx2": ("avx2", "fma"),
    "avx512": ("avx512f", "avx512bw"),
    "avx512_bf16": ("avx512_bf16",),
    "amx": ("amx_tile", "amx_bf16"),
    "neon": ("asimd",),
    "neon_bf16": ("bf16", "asimd"),
}
_LITTLE_MEMORY = 2 * GIB


@dataclass(frozen=True, slots=True)
class Finding:
    """One line. 'advice': it works, but could work better. 'problem': lullm cannot be used."""

    topic: str
    text: str
    status: Status = "ok"
    advice: str | None = None


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the description and flags of `lullm doctor`."""
    parser.description = (
        "Say what this machine has, what lullm will use of it, and what to do about what is missing. "
        f"Exit code 0 unless lullm cannot be used here ({UNUSABLE}). Loads no model."
    )
    parser.add_argument("--json", action="store_true", help="print an object instead of lines")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print all findings."""
    findings = examine()
    is_usable = all(finding.status != "problem" for finding in findings)
    if args.json:
        print(json.dumps({"usable": is_usable, "findings": [dataclasses.asdict(f) for f in findings]}, indent=1))
    else:
        width = max(len(finding.topic) for finding in findings)
        for finding in findings:
            mark = {"ok": " ", "advice": "!", "problem": "X"}[finding.status]
            print(f"{mark} {finding.topic.ljust(width)}  {finding.text}")
            if finding.advice:
                print(f"  {' ' * width}  -> {finding.advice}")
        num_hints = sum(finding.status != "ok" for finding in findings)
        print(
            "\nlullm cannot be used here yet: see X"
            if not is_usable
            else f"\nlullm can be used here; {num_hints} {'hint' if num_hints == 1 else 'hints'}"
        )
    return 0 if is_usable else UNUSABLE


def examine() -> list[Finding]:
    """All findings. An examination that fails is a finding; the others go on."""
    findings: list[Finding] = []
    examinations: tuple[Callable[[], Iterator[Finding]], ...] = (
        _software, _processor, _native_ops, _threads, _memory, _devices, _folders, _libraries,
    )  # fmt: skip
    for examination in examinations:
        try:
            findings += examination()
        except (LullmError, OSError, ValueError) as error:
            topic = examination.__name__.strip("_").replace("_", " ")
            findings.append(Finding(topic, f"could not be examined: {type(error).__name__}: {error}", "advice"))
    return findings


def _software() -> Iterator[Finding]:
    yield Finding("lullm", f"{lullm.__version__} in {Path(lullm.__file__).parent}")
    yield Finding("Python", ".".join(map(str, sys.version_info[:3])))


def _processor() -> Iterator[Finding]:
    cpus = processor.allowed_cpus()
    text = f"{processor.model_name() or 'unknown'}: {os.cpu_count()} CPUs, {len(cpus)} of them allowed"
    yield Finding("processor", f"{text} ({processor.num_cores(cpus)} cores)")
    levels = _isa_levels()
    if levels:
        yield Finding("instruction sets", ", ".join(levels))
    else:
        hint = "torch's kernels serve; expect a fraction of the speed"
        yield Finding("instruction sets", "neither AVX2 nor NEON", "advice", hint)
    if len(nodes := processor.numa_nodes(cpus)) > 1:
        hint = "weights and KV cache are spread over them; `numactl --cpunodebind=N --membind=N` keeps an engine on one"
        yield Finding("memory nodes", f"{len(nodes)} (NUMA)", "advice", hint)


def _native_ops() -> Iterator[Finding]:
    try:
        found = library.load_library()
    except ConfigError as error:
        yield Finding("native ops", str(error), "problem", f"unset {library.ISA_VARIABLE} or correct it")
        return
    if found is None:
        if library.ISA_VARIABLE in os.environ:
            hint = f"unset {library.ISA_VARIABLE}"
        elif library.mismatch():
            hint = "build the library again, as said"
        else:
            hint = "install a C++ compiler and lullm again"
        text = library.absence() or "absent"
        yield Finding("native ops", text, "advice", f"torch's kernels serve, at about half the speed; {hint}")
        return
    best = found.available_isas[-1]
    text = f"{found.isa} (available: {', '.join(found.available_isas)})"
    if found.isa != best:
        yield Finding("native ops", text, "advice", f"unset {library.ISA_VARIABLE} for {best}")
    elif refused := [level for level in _isa_levels() if level not in found.available_isas]:
        hint = (
            f"the processor has {', '.join(refused)}, which this system does not let programs use; a newer kernel may"
        )
        yield Finding("native ops", text, "advice", hint)
    else:
        yield Finding("native ops", text)


def _threads() -> Iterator[Finding]:
    num_threads, num_cores = processor.default_num_threads(), processor.num_cores(processor.allowed_cpus())
    quota = processor.cpu_quota()
    omp = os.environ.get(processor.THREADS_VARIABLE)
    why = f"{processor.THREADS_VARIABLE}={omp}" if omp else f"{num_cores} cores allowed"
    why += ", no CPU quota" if quota is None else f", CPU quota {quota:g}"
    text = f"{num_threads} ({why}; --threads N for another number)"
    limit = num_cores if quota is None else min(num_cores, max(1, round(quota)))
    if num_threads > limit:
        yield Finding("threads", text, "advice", f"more threads than cores wait for each other: {limit} are enough")
    elif num_threads < limit:
        yield Finding("threads", text, "advice", f"{limit} would be there to use")
    else:
        yield Finding("threads", text)
    load = os.getloadavg()[0]
    if load > num_cores:
        hint = "figures of speed mean little while other programs use the processor"
        yield Finding("load", f"{load:.1f} over the last minute", "advice", hint)


def _memory() -> Iterator[Finding]:
    available, limit = memory.available_memory_bytes(_ROOT), memory.group_limit_bytes(_ROOT)
    text = f"{format_bytes(available)} available of {format_bytes(memory.total_memory_bytes(_ROOT))}"
    if limit is not None:
        text += f", of which this control group may have {format_bytes(limit)}"
    if available < _LITTLE_MEMORY:
        yield Finding(
            "memory", text, "advice", "enough for the demo model; weights take 2 bytes a parameter in bfloat16"
        )
    else:
        yield Finding("memory", text)
    setting = (_ROOT / "sys/kernel/mm/transparent_hugepage/enabled").read_text()
    setting = setting[setting.index("[") + 1 : setting.index("]")]
    if setting == "never":
        hint = (
            "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled (as root): weights are read up to 1.2 x as fast"
        )
        yield Finding("huge pages", "never", "advice", hint)
    else:
        yield Finding("huge pages", setting)


def _devices() -> Iterator[Finding]:
    names = [each.name for each in gpu.listed_gpus(_ROOT)]
    names += ["AMD"] * (_ROOT / "dev/kfd").exists()
    names += ["Ascend"] * (_ROOT / "dev/davinci0").exists()
    triton, torch = _version("triton"), _version("torch")
    text = f"{', '.join(names) or 'none'} ({f'triton {triton}' if triton else 'no triton'})"
    if not names:
        yield Finding("GPU", text)
        return
    hints = []
    try:
        EngineConfig(device="cuda")
    except ConfigError as error:
        hints.append(str(error))
    if torch and torch.endswith("+cpu"):
        hints.append(f"torch {torch} is built for CPUs only; install a build for this GPU")
    if not triton:
        hints.append("pip install triton")
    if not hints:
        reason = gpu.why_auto_is_cpu(_ROOT)
        text += "; used by default" if reason is None else f"; used with --device cuda only: {reason}"
    yield Finding("GPU", text, "advice" if hints else "ok", "; ".join(hints) or None)


def _folders() -> Iterator[Finding]:
    home = os.environ.get("HF_HOME") or Path.home() / ".cache/huggingface"
    cache = Path(os.environ.get("HF_HUB_CACHE") or Path(home) / "hub")
    num_models = len(list(cache.glob("models--*"))) if cache.is_dir() else 0
    offline = ", offline (HF_HUB_OFFLINE)" if os.environ.get("HF_HUB_OFFLINE", "0") not in ("", "0") else ""
    yield Finding("hub cache", f"{cache}: {num_models} models{offline}")
    folder = Path(tempfile.gettempdir())
    text = f"{folder}: {format_bytes(shutil.disk_usage(folder).free)} free"
    if _file_system(folder) in ("tmpfs", "ramfs"):
        hint = "this folder is in memory: what sleeps there frees nothing; give --sleep-dir a folder on a disk"
        yield Finding("folder for sleep", text, "advice", hint)
    else:
        yield Finding("folder for sleep", text)


def _libraries() -> Iterator[Finding]:
    there = {name: module for name, (module, _) in REQUIRED.items() if importlib.util.find_spec(module)}
    failed = failed_imports(list(there.values()))
    for name, (module, oldest) in REQUIRED.items():
        version = _version(name) if name in there else None
        if version is None:
            yield Finding(name, "not installed", "problem", f"pip install '{name}>={oldest}'")
        elif _numbers(version) < _numbers(oldest):
            yield Finding(name, version, "problem", f"too old: pip install '{name}>={oldest}'")
        elif module in failed:
            hint = f"install it again: pip install --force-reinstall '{name}>={oldest}'"
            yield Finding(name, f"{version} cannot be imported: {failed[module]}", "problem", hint)
        else:
            yield Finding(name, version)


def _isa_levels() -> list[str]:
    """The levels of `ops.cpu.library` whose flags the processor has."""
    flags = processor.flags()
    return [name for name, needed in _LEVELS.items() if flags.issuperset(needed)]


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _numbers(version: str) -> tuple[int, ...]:
    """`'2.13.0+cpu'` -> (2, 13, 0)."""
    parts = version.partition("+")[0].split(".")
    return tuple(int(part) for part in parts if part.isdecimal())


def _file_system(folder: Path) -> str | None:
    """The type of the file system that holds `folder`: that of the longest mount point above it."""
    best: tuple[int, str] | None = None
    for line in (_ROOT / "proc/mounts").read_text().splitlines():
        _, mount, kind, *_ = line.split()
        if folder.resolve().is_relative_to(mount) and (best is None or len(mount) >= best[0]):
            best = len(mount), kind
    return best and best[1]
