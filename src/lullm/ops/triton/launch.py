"""Launches kernels without Triton's own launcher, which binds, hashes and looks up every argument anew: 10 to 80 us.

A kernel's constants and the kinds of its arguments determine the compiled kernel. They are the key of a dictionary
here, and the compiled kernel is called directly, with addresses in place of tensors: of a tensor Triton would ask the
driver, argument by argument. `bench/gpu_host.py` measures the difference.
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
        self._bind = _binder([_kind(jit, place, parameter.name) for place, parameter in enumerate(arguments)])
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
            kinds, values = self._bind(*arguments)
            key = (device, kinds, *constants.values())
            found = self._compiled.get(key)
            if found is None or IS_INTERPRETED or triton.knobs.runtime.launch_enter_hook.calls:  # a profiler's
                self._compiled[key] = self._launch_by_triton(grid, arguments, constants)
                return
            run, function, metadata, own = found
            x, y, z = (*grid, 1, 1)[:3]
            stream = triton.runtime.driver.active.get_current_stream(device)
            run(x, y, z, stream, function, metadata, None, None, None, *values, *own)

        return launch

    def _launch_by_triton(self, grid: tuple[int, ...], arguments: Any, constants: dict[str, Any]) -> tuple[Any, ...]:
        """Launch by Triton, which compiles the kernel if necessary. Returns the arguments of the next launch."""
        compiled = self._jit[grid](*arguments, **constants)
        if IS_INTERPRETED:
            return ()
        return (
            compiled.run, compiled.function, compiled.packed_metadata, [constants[name] for name in self._constants]
        )  # fmt: skip


def _kind(jit: Any, place: int, name: str) -> str:
    """What of an argument's value selects the compiled kernel: a key of `_KINDS`."""
    if IS_INTERPRETED:
        by_value, by_alignment = (
            name in (jit.kwargs.get(option) or ()) for option in ("do_not_specialize", "do_not_specialize_on_alignment")
        )
    else:
        parameter = jit.params[place]
        by_value, by_alignment = parameter.do_not_specialize, parameter.do_not_specialize_on_alignment
    if name.endswith("_ptr"):
        return "unaligned tensor" if by_alignment else "tensor"
    return "any number" if by_value else "number"


_KINDS = {
    "tensor": "{0}.dtype, {0}_ & 15 == 0",
    "unaligned tensor": "{0}.dtype",
    "number": "float if isinstance({0}, float) else ({0} == 1, {0} & 15 == 0, -2147483648 <= {0} < 2147483648)",
    "any number": "float if isinstance({0}, float) else -2147483648 <= {0} < 2147483648",
}
"""Python for what the key has of an argument. `{0}_` is a tensor's address."""


def _binder(kinds: list[str]) -> Callable[..., tuple[tuple[object, ...], tuple[Any, ...]]]:
    """A function of the arguments: what selects the compiled kernel, and the values to launch it with.

    It is written as text, as Triton's own is: a loop that calls a function for each argument takes three times as long.
    """
    names = [f"a{place}" for place in range(len(kinds))]
    kind_of = dict(zip(names, kinds, strict=True))
    tensors = [name for name, kind in kind_of.items() if "tensor" in kind]
    addresses = [f"    {name}_ = {name}.data_ptr()" for name in tensors]
    parts = [_KINDS[kind].format(name) for name, kind in kind_of.items()]
    values = [f"{name}_" if name in tensors else name for name in names]
    lines = [f"def bind({', '.join(names)}):", *addresses, f"    return ({', '.join(parts)},), ({', '.join(values)},)"]
    scope: dict[str, Any] = {}
    exec("\n".join(lines), scope)  # of constants of this file alone
    bind: Callable[..., tuple[tuple[object, ...], tuple[Any, ...]]] = scope["bind"]
    return bind
