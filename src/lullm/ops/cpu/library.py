"""The native library: where it lies, whether it fits, which instruction set it uses.

It is built beside this file from `csrc/`, for Linux on x86-64 or ARM64, if there was a C++ compiler. Where it is
missing, or not the one of these files, or the processor has none of its instruction sets, there is no native version
and torch serves. A library of other sources can give wrong numbers and no error, so a checkout compares digests of
them as well.

The environment variable `LULLM_CPU_ISA` (avx2, avx512, avx512_bf16 or amx; neon or neon_bf16) asks for a lesser
instruction set than the best of this machine; `none` leaves everything to torch. `LULLM_CPU_LIBRARY` is the path of
another build of it, such as one with sanitizers. Both are read when the library is first used.
"""

import contextlib
import ctypes
import functools
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from lullm.errors import ConfigError
from lullm.log import get_logger
from lullm.units import MIB

logger = get_logger(__name__)

ISA_VARIABLE = "LULLM_CPU_ISA"
LIBRARY_VARIABLE = "LULLM_CPU_LIBRARY"
_ABI_VERSION = 20
_SOURCES = Path(__file__).parent / "csrc"
"""In a checkout; an installed package has none."""

_POINTER, _SIZE, _INT, _FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int, ctypes.c_float
_SIGNATURES: dict[str, list[type]] = {
    "lullm_set_num_threads": [_INT],
    "lullm_pack_weight": [_POINTER, _SIZE, _SIZE, _INT],
    "lullm_unpack_weight": [_POINTER, _SIZE, _SIZE, _INT],
    "lullm_map_rows": [_POINTER] * 2 + [_SIZE] * 2 + [_INT],
    "lullm_settle_rows": [_POINTER] * 2 + [_INT],
    "lullm_forget_rows": [_POINTER],
    "lullm_linear": [_POINTER] * 4 + [_SIZE] * 5 + [_INT],
    "lullm_logits": [_POINTER] * 3 + [_SIZE] * 4 + [_INT],
    "lullm_gated_linear": [_POINTER] * 4 + [_SIZE] * 4 + [_INT] * 2,
    "lullm_embedding": [_POINTER] * 3 + [_SIZE] * 3 + [_INT],
    "lullm_rms_norm": [_POINTER] * 5 + [_SIZE] * 5 + [_FLOAT, _INT],
    "lullm_sum_squares": [_POINTER] * 2 + [_SIZE] * 4 + [_INT],
    "lullm_norm_by_squares": [_POINTER] * 3 + [_SIZE] * 5 + [_FLOAT, _INT],
    "lullm_rope_and_cache": [_POINTER] * 11 + [_SIZE] * 6 + [_FLOAT] + [_INT] * 2,
    "lullm_write_cache": [_POINTER] * 4 + [_SIZE] * 5 + [_INT] * 2,
    "lullm_multiply_heads": [_POINTER] * 3 + [_SIZE] * 8 + [_INT] * 2,
    "lullm_layer_norm": [_POINTER] * 4 + [_SIZE] * 3 + [_FLOAT, _INT],
    "lullm_activate": [_POINTER] * 2 + [_SIZE] * 3 + [_INT] * 3,
    "lullm_add": [_POINTER] * 2 + [_SIZE, _INT],
    "lullm_xielu": [_POINTER] * 5 + [_SIZE, _INT],
    "lullm_join": [_POINTER] * 3 + [_SIZE] * 5,
    "lullm_scale": [_POINTER, _SIZE, _FLOAT, _INT],
    "lullm_soft_cap": [_POINTER, _SIZE, _FLOAT, _INT],
    "lullm_scale_by": [_POINTER] * 2 + [_SIZE, _INT],
    "lullm_rotate": [_POINTER] * 4 + [_SIZE] * 5 + [_FLOAT, _INT],
    "lullm_attention": [_POINTER] * 10 + [_SIZE] * 9 + [_FLOAT] * 2 + [_INT] * 3,
    "lullm_mutual_attention": [_POINTER] * 5 + [_SIZE] * 6 + [_FLOAT, _INT],
    "lullm_forbid": [_POINTER] * 3 + [_SIZE] * 4,
    "lullm_draw_tokens": [_POINTER] * 7 + [_SIZE] * 3 + [_INT],
    "lullm_draw_allowed": [_POINTER] * 9 + [_SIZE] * 4,
    "lullm_copy_blocks": [_POINTER, _POINTER, _SIZE, _POINTER, _SIZE, _SIZE],
    "lullm_route": [_POINTER] * 5 + [_SIZE] * 7 + [_FLOAT] + [_INT] * 3,
    "lullm_sort_rows": [_POINTER] * 6 + [_SIZE] * 3,
    "lullm_grouped_linear": [_POINTER] * 6 + [_SIZE] * 6 + [_INT, _INT, _FLOAT, _FLOAT, _INT],
    "lullm_clamped_gate": [_POINTER] * 2 + [_SIZE] * 2 + [_FLOAT] * 2 + [_INT],
    "lullm_mix": [_POINTER] * 8 + [_SIZE] * 4 + [_INT],
    "lullm_quantize_rows": [_POINTER] * 2 + [_SIZE] * 3 + [_INT] * 2,
    "lullm_store_rows": [_POINTER] * 4 + [_SIZE] * 3 + [_INT],
    "lullm_store_groups": [_POINTER] * 4 + [_SIZE] * 3 + [_INT],
    "lullm_store_narrow": [_POINTER] * 3 + [_SIZE] * 3 + [_INT],
    "lullm_quantized_linear": [_POINTER] * 4 + [_SIZE] * 5 + [_INT] * 3,
    "lullm_quantized_logits": [_POINTER] * 3 + [_SIZE] * 4 + [_INT] * 2,
    "lullm_quantized_embedding": [_POINTER] * 3 + [_SIZE] * 3 + [_INT] * 2,
    "lullm_causal_convolution": [_POINTER] * 9 + [_SIZE] * 9 + [_INT] * 2,
    "lullm_recurrence": [_POINTER] * 14 + [_SIZE] * 13 + [_FLOAT] * 2 + [_INT] * 3,
    "lullm_selective_scan": [_POINTER] * 12 + [_SIZE] * 11 + [_INT],
    "lullm_rg_lru": [_POINTER] * 12 + [_SIZE] * 10 + [_INT],
    "lullm_gated_rms_norm": [_POINTER] * 4 + [_SIZE] * 6 + [_FLOAT] + [_INT] * 2,
    "lullm_multiply": [_POINTER] * 2 + [_SIZE] * 5 + [_INT] * 2,
    "lullm_add_lora": [_POINTER] * 7 + [_SIZE] * 8 + [_INT],
    "lullm_group_bytes": [_SIZE],
    "lullm_open_group": [_INT] + [_SIZE] * 4,
    "lullm_close_group": [_POINTER],
    "lullm_group_failure": [_POINTER] * 2,
    "lullm_meet": [_POINTER],
    "lullm_all_reduce": [_POINTER] * 2 + [_SIZE, _INT],
    "lullm_all_gather": [_POINTER] * 3 + [_SIZE] * 2,
    "lullm_deal_rows": [_POINTER] * 3 + [_SIZE] * 2,
    "lullm_send": [_POINTER] * 2 + [_SIZE] * 2,
    "lullm_receive": [_POINTER] * 2 + [_SIZE] * 2,
    "lullm_digest_bytes": [],
    "lullm_begin_digest": [_POINTER],
    "lullm_extend_digest": [_POINTER] * 3 + [_SIZE],
    "lullm_digest_value": [_POINTER] * 2,
    "lullm_touch": [_POINTER, _SIZE, _SIZE, _POINTER],
    "lullm_touch_pages": [_POINTER] + [_SIZE] * 2,
    "lullm_spin_products": [_SIZE, _INT],
    "lullm_operation_number": [ctypes.c_char_p],
    "lullm_replay": [_POINTER, _SIZE],
}
_RETURN_INT = (
    "lullm_embedding", "lullm_gated_linear", "lullm_quantize_rows", "lullm_store_narrow", "lullm_quantized_embedding",
    "lullm_sort_rows", "lullm_grouped_linear", "lullm_operation_number", "lullm_replay",
    "lullm_group_failure", "lullm_meet", "lullm_all_reduce", "lullm_all_gather", "lullm_deal_rows",
    "lullm_send", "lullm_receive",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Library:
    """The loaded library. `isa`: the instruction set in use; `available_isas`: those of this machine, best last."""

    handle: ctypes.CDLL
    isa: str
    available_isas: tuple[str, ...]


@functools.cache
def load_library() -> Library | None:
    """The library, loaded at the first call; None (and `absence` says why) if there is none to use.

    Raises:
        ConfigError: LULLM_CPU_ISA names an instruction set that this machine or the library does not have; or the
            library is asked for by name and is not the one of these files.
    """
    if mismatch() is not None and os.environ.get(ISA_VARIABLE) != "none":
        if named := [name for name in (ISA_VARIABLE, LIBRARY_VARIABLE) if os.environ.get(name)]:
            raise ConfigError(f"{mismatch()}, and {' and '.join(named)} ask for it")
        logger.warning("native CPU ops are left out: %s", mismatch())
    if absence() is not None:
        return None
    handle = ctypes.CDLL(str(_path()))
    for name, argument_types in _SIGNATURES.items():
        function = getattr(handle, name)
        function.argtypes, function.restype = argument_types, None
    for name in _RETURN_INT:
        getattr(handle, name).restype = _INT
    for name in ("lullm_spin_products", "lullm_group_bytes", "lullm_digest_bytes"):
        getattr(handle, name).restype = _SIZE
    handle.lullm_open_group.restype = _POINTER
    available = _available_isas(handle)
    wanted = os.environ.get(ISA_VARIABLE) or available[-1]
    if not handle.lullm_select_isa(wanted.encode()):
        raise ConfigError(f"{ISA_VARIABLE}={wanted!r}: this machine offers {', '.join(available)}; 'none' means torch")
    logger.debug("native CPU ops: %s of %s", wanted, ", ".join(available))
    _keep_freed_memory()
    return Library(handle, wanted, available)


def _keep_freed_memory() -> None:
    """Let malloc reuse what is freed instead of giving it back to the operating system; `malloc_trim` still does.

    A step allocates and frees the same few results of megabytes over and over. By default each of them is mapped
    anew, and its page faults cost more than the product in it: 1024 rows times [4096, 1024] ran at 0.9 instead of
    2.1 TFLOP/s.
    """
    mmap_threshold, trim_threshold = -3, -1  # M_MMAP_THRESHOLD, M_TRIM_THRESHOLD of malloc.h
    with contextlib.suppress(AttributeError):  # another C library than glibc
        libc = ctypes.CDLL(None)
        libc.mallopt(mmap_threshold, 32 * MIB)  # the most that it accepts
        libc.mallopt(trim_threshold, 512 * MIB)


@functools.cache
def absence() -> str | None:
    """Why there are no native ops here, for people; None if there are."""
    if os.environ.get(ISA_VARIABLE) == "none":
        return f"switched off by {ISA_VARIABLE}=none"
    path = _path()
    if not path.exists():
        return "not built (it needs Linux on x86-64 or ARM64 and a C++ compiler when lullm is installed)"
    try:
        handle = ctypes.CDLL(str(path))
    except OSError as error:
        return f"{path} cannot be loaded: {error}"
    if mismatch() is not None:
        return mismatch()
    return (
        None if _available_isas(handle) else "this processor has none of its instruction sets (AVX2 or NEON and newer)"
    )


@functools.cache
def mismatch() -> str | None:
    """Why the library is not the one of these files, for people; None if it is, or there is none."""
    path = _path()
    try:
        handle = ctypes.CDLL(str(path))
    except OSError:
        return None
    try:
        if handle.lullm_abi_version() != _ABI_VERSION:
            return f"{path} is of another version of lullm; install lullm again"
        handle.lullm_source_digest.restype = ctypes.c_char_p
        digest = handle.lullm_source_digest().decode()
    except AttributeError as error:
        return f"{path} is of another version of lullm ({error}); install lullm again"
    if _SOURCES.is_dir() and digest != source_digest(_SOURCES):
        return f"{path} was built from other sources than {_SOURCES} holds; build it again (pip install -e .)"
    return None


def source_digest(folder: Path) -> str:
    """SHA-256 over the sorted lines "path SHA-256" of a folder's sources, as `CMakeLists.txt` compiles it in."""
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.suffix in (".cpp", ".h"))
    lines = (f"{name} {hashlib.sha256((folder / name).read_bytes()).hexdigest()}\n" for name in names)
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _path() -> Path:
    return Path(os.environ.get(LIBRARY_VARIABLE) or Path(__file__).parent / "liblullm_cpu.so")


def _available_isas(handle: ctypes.CDLL) -> tuple[str, ...]:
    handle.lullm_available_isas.restype = ctypes.c_char_p
    names = handle.lullm_available_isas().decode()
    return tuple(names.split(",")) if names else ()
