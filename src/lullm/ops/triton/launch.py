"""Launches kernels without Triton's own launcher, which binds, hashes and looks up every argument anew: 10 to 80 us.

A kernel's constants and the kinds of its arguments determine the compiled kernel. They are the key of a dictionary
here, and the compiled kernel is called directly. `bench/gpu_host.py` measures the difference.
"""

import contextlib
import inspect
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any

import torch
import triton

from lullm.ops.triton.device import IS_INTERPRETED

_ALIGNMENT = 16
"""Triton compiles a separate kernel for addresses and numbers that are multiples of this."""

_MAX_THREADS = 16
"""Threads of a compilation: an engine has about a dozen kernels."""

_COMPILES_ONLY: ContextVar[bool] = ContextVar("compiles_only", default=False)
"""Set per thread: another engine of the process may serve meanwhile."""


@contextlib.contextmanager
def compiling_ahead() -> Iterator[None]:
    """Inside, a launch of this thread passes its kernel to threads that compile it, and runs nothing.

    The kernels' results are undefined there, and must not be used as indices. At the end all kernels are compiled and
    on disk. If one does not compile, the launch that needs it raises the compiler's error. Most of a compilation runs
    outside Python's lock: passes of the compiler, and the assembler in its own process. So two cores take 0.6 of the
    time of one (docs/gpu.md).
    """
    num_threads = min(_MAX_THREADS, len(os.sched_getaffinity(0)))
    with ThreadPoolExecutor(num_threads) as pool, triton.AsyncCompileMode(pool, ignore_errors=True):
        before = _COMPILES_ONLY.set(True)
        try:
            yield
        finally:
            _COMPILES_ONLY.reset(before)


class Kernel:
    """`kernel[grid](*arguments, **constants)`, as with the function that `triton.jit` gives.

    Its parameters are arguments, by position, then constants, by name and always in the same order. The names of
    tensors end with `_ptr`.

    Attributes:
        variants: the keys of all launches so far, also of interpreted kernels.
    """

    def __init__(self, jit: Any):
        self._jit = jit
        parameters = list(inspect.signature(jit.fn).parameters.values())
        is_constant = [parameter.annotation is triton.language.constexpr for parameter in parameters]
        assert is_constant == sorted(is_constant), "constants stand behind the arguments"
        self._constants = [p.name for p, constant in zip(parameters, is_constant, strict=True) if constant]
        arguments = parameters[: len(parameters) - len(self._constants)]
        self._kinds = [_kind_function(jit, place, parameter.name) for place, parameter in enumerate(arguments)]
        self._compiled: dict[tuple[object, ...], tuple[Any, ...]] = {}

    @property
    def variants(self) -> set[tuple[object, ...]]:
        return set(self._compiled)

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def launch(*arguments: Any, **constants: Any) -> None:
            if _COMPILES_ONLY.get():
                if not IS_INTERPRETED:
                    self._jit.warmup(*arguments, grid=grid, **constants)
                return
            device = -1 if IS_INTERPRETED else torch.cuda.current_device()
            kinds = [kind(argument) for kind, argument in zip(self._kinds, arguments, strict=True)]
            key = (device, *kinds, *constants.values())
            found = self._compiled.get(key)
            if found is None or IS_INTERPRETED or triton.knobs.runtime.launch_enter_hook.calls:  # a profiler's
                self._compiled[key] = self._launch_by_triton(grid, arguments, constants)
                return
            run, function, metadata, values = found
            x, y, z = (*grid, 1, 1)[:3]
            stream = triton.runtime.driver.active.get_current_stream(device)
            run(x, y, z, stream, function, metadata, None, None, None, *arguments, *values)

        return launch

    def _launch_by_triton(self, grid: tuple[int, ...], arguments: Any, constants: dict[str, Any]) -> tuple[Any, ...]:
        """Launch by Triton, which compiles the kernel if necessary. Returns the arguments of the next launch."""
        compiled = self._jit[grid](*arguments, **constants)
        if IS_INTERPRETED:
            return ()
        return (
            compiled.run, compiled.function, compiled.packed_metadata, [constants[name] for name in self._constants]
        )  # fmt: skip


def _kind_function(jit: Any, place: int, name: str) -> Callable[[Any], object]:
    if IS_INTERPRETED:
        by_value, by_alignment = (
            name in (jit.kwargs.get(option) or ()) for option in ("do_not_specialize", "do_not_specialize_on_alignment")
        )
    else:
        parameter = jit.params[place]
        by_value, by_alignment = parameter.do_not_specialize, parameter.do_not_specialize_on_alignment
    if name.endswith("_ptr"):
        return _kind_of_unaligned if by_alignment else _kind_of_tensor
    return _kind_of_any_number if by_value else _kind_of_number


def _kind_of_tensor(tensor: torch.Tensor) -> object:
    return tensor.dtype, tensor.data_ptr() % _ALIGNMENT == 0


def _kind_of_unaligned(tensor: torch.Tensor) -> object:
    return tensor.dtype


def _kind_of_number(number: float) -> object:
    if isinstance(number, float):
        return float
    return number == 1, number % _ALIGNMENT == 0, -(1 << 31) <= number < 1 << 31


def _kind_of_any_number(number: float) -> object:
    return float if isinstance(number, float) else -(1 << 31) <= number < 1 << 31
