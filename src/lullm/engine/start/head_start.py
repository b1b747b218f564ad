"""A head start: fetches files and memory for an engine of a known config while torch is still being imported.

`import torch` keeps one core busy for most of a second. Meanwhile the kernel reads the weight files into its cache, and
a thread touches the memory for the weights. Loads no torch.
"""

import contextlib
import ctypes
import gc
import mmap
import os
import threading
from collections.abc import Iterator
from pathlib import Path

from lullm.config.engine import EngineConfig
from lullm.config.json_file import given_path, option_object
from lullm.config.mistral.layout import has_config
from lullm.config.model import ModelConfig
from lullm.errors import LullmError
from lullm.log import get_logger
from lullm.machine.memory import available_memory_bytes
from lullm.machine.memory_ahead import MemoryAhead, Touch, touch_in_steps
from lullm.ops.cpu.library import load_library
from lullm.units import MIB
from lullm.weights.reading.files import weights_stem

logger = get_logger(__name__)

_LEAST_BYTES = 128 * MIB
"""Smaller weights get no head start: they load within 50 ms."""
_ROOM = 1.1
"""Addresses per byte that is touched: alignment of the tensors, scales of quantized ones."""
_BYTES = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0, "int8": 1.0, "int4": 0.5}


@contextlib.contextmanager
def head_start(config: EngineConfig) -> Iterator[MemoryAhead | None]:
    """Give a head start during the imports and the start of one engine. Yields memory for its weights; None: no need.

    The garbage collector is off meanwhile: three full collections of torch's 180,000 objects took 0.2 s of a start. A
    config that the engine will refuse gets no head start, and no error here.
    """
    ahead = _begin(config)
    is_collecting = gc.isenabled()
    gc.disable()
    try:
        yield ahead
    finally:
        if is_collecting:
            if not _anything_is_frozen():
                # Move all objects to the oldest generation, as three collections would. Otherwise the next object
                # starts one.
                gc.freeze()
                gc.unfreeze()
            gc.enable()
        if ahead is not None:
            ahead.close()


def _anything_is_frozen() -> bool:
    """Python has no quicker way than to count: 0.1 s per million objects."""
    return gc.get_freeze_count() > 0


def _begin(config: EngineConfig) -> MemoryAhead | None:
    try:
        folder = given_path(config.model)
        files = sorted(folder.glob(f"{weights_stem(folder)}*.safetensors"))
        if not files or not has_config(folder):  # the demo is small; a hub id may not be downloaded yet
            return None
        stored = sum(file.stat().st_size for file in files)
        if stored < _LEAST_BYTES:
            return None
        threading.Thread(target=_read_ahead, args=(files,), name="lullm-read-ahead", daemon=True).start()
        model = ModelConfig.from_folder(folder, option_object("hf_overrides", config.hf_overrides))
        resolved = config.resolve(model)
        if model.encoding is not None:  # memory may need four times the size of the files, or the same
            return None
        num_bytes = int(stored * _BYTES[resolved.quantization or resolved.dtype] / _BYTES[model.dtype])
        if resolved.executor_backend == "mp":  # the weights lie in other processes
            return None
        if resolved.device != "cpu" or resolved.load_format == "dummy" or num_bytes > available_memory_bytes():
            return None
        return MemoryAhead(num_bytes, int(num_bytes * _ROOM), _touch())
    except (LullmError, OSError) as error:
        logger.debug("no head start: %s", error)
        return None


def _touch() -> Touch:
    library = load_library()
    if library is None:
        return touch_in_steps
    touch = library.handle.lullm_touch
    return lambda address, num_bytes, wanted: touch(address, num_bytes, mmap.PAGESIZE, ctypes.byref(wanted))


def _read_ahead(files: list[Path]) -> None:
    """Have the kernel read the files. May block for as long as the disk needs; releases the interpreter's lock."""
    for path in files:
        with contextlib.suppress(OSError), path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_WILLNEED)
