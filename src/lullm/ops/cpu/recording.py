"""Recording: the native calls of a computation, recorded while it runs, and replayed in one call.

Every call into the native library goes through `call`, and every result of one lies in memory from `new_result`. While
a `Recording` is active on a thread, `call` also appends the call to it, as the number of its operation and its
arguments in 64-bit words, and results come from a workspace, whose addresses stay. `Recording.replay` hands the words
to `csrc/replay.cpp`, which makes the same calls with the same addresses: a step of a model that takes some hundred
ctypes calls (5 to 15 microseconds of Python each) then takes one, without the interpreter lock.

So a replay computes the same function of the present contents at those addresses. An operation of torch in between
would be missing in the replay. A torch function mode detects such operations, and `refusal` names the first; the
computation itself has then run as usual. Views are no operations. A recorded computation must not contain what the mode
cannot see: numpy over a tensor's memory.
"""

import ctypes
import functools
import struct
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from lullm.arena.workspace import Workspace
from lullm.errors import UnsupportedError
from lullm.ops.cpu.library import absence, load_library

_WORD = (1 << 64) - 1


class _Thread(threading.local):
    recording: "Recording | None" = None


_thread = _Thread()


def _handle() -> ctypes.CDLL:
    library = load_library()
    if library is None:
        raise UnsupportedError(f"there are no native CPU ops: {absence()}")
    return library.handle


def call(name: str, *arguments: Any) -> int | None:
    """Call a function of the native library. It returns 0 if it cannot do its work (`csrc/operation.h`).

    A tensor is passed as its address. None where the function takes one is a null pointer.
    """
    plain = tuple([each.data_ptr() if isinstance(each, Tensor) else each for each in arguments])
    result: int | None = getattr(_handle(), name)(*plain)
    recording = _thread.recording
    if recording is not None and result != 0:
        recording.add(name, plain)
    return result


def new_result(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Memory for the result of a native call."""
    recording = _thread.recording
    return torch.empty(shape, dtype=dtype) if recording is None else recording.empty(shape, dtype)


class Recording:
    """`with Recording(workspace) as recording:` records what this thread does; afterwards `replay` does it again.

    Inputs and results that outlive it keep their addresses by the caller's care; see `Device.capture`.

    Attributes:
        refusal: the reason why a replay would not repeat the computation; None: it does.
    """

    def __init__(self, workspace: Workspace):
        self._workspace = workspace
        self._calls: list[tuple[str, tuple[Any, ...]]] = []
        self._words: ctypes.Array[ctypes.c_uint64] | None = None
        self._check = _TorchCheck()

    def __enter__(self) -> "Recording":
        assert _thread.recording is None, "one at a time"
        _thread.recording = self
        self._check.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        _thread.recording = None
        self._check.__exit__(kind, error, traceback)
        if kind is None and self.refusal is None:
            words = [word for name, arguments in self._calls for word in _words_of(name, arguments)]
            self._words = (ctypes.c_uint64 * len(words))(*words)
        self._calls.clear()

    @property
    def refusal(self) -> str | None:
        """See the class."""
        return self._check.refusal

    def replay(self) -> bool:
        """Make the calls again. False: one of them could not do its work, and the calls after it were not made.

        Blocking, without the interpreter lock. One replay over a workspace at a time.
        """
        assert self._words is not None, "nothing was recorded"
        return bool(_handle().lullm_replay(self._words, len(self._words)))

    def add(self, name: str, arguments: tuple[Any, ...]) -> None:
        if _operation_number(name) < 0:
            self._check.refuse(f"{name} cannot be replayed")
        self._calls.append((name, arguments))

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        self._check.is_paused = True
        try:
            tensor = self._workspace.try_empty(shape, dtype)
            if tensor is None:
                self._check.refuse(f"a result of {tuple(shape)} has no room in the workspace")
                tensor = torch.empty(shape, dtype=dtype)
            return tensor
        finally:
            self._check.is_paused = False


class _TorchCheck(TorchFunctionMode):
    """Refuses a recording when torch does anything but look at tensors, or make views of them.

    Not a dispatch mode, which would see more than what Python calls: that one loads torch's compiler, 0.9 seconds.
    """

    def __init__(self) -> None:
        super().__init__()
        self.refusal: str | None = None
        self.is_paused = False

    def refuse(self, reason: str) -> None:
        self.refusal = self.refusal or reason

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not self.is_paused:
            name = getattr(func, "__name__", "")
            if not (name in _LOOKS or name in _VIEWS and _is_view(result, args)):
                self.refuse(f"{name or func} is torch's")
        return result


_LOOKS = frozenset(
    ("__get__", "__len__", "size", "stride", "dim", "numel", "element_size", "storage_offset", "is_contiguous",
     "is_floating_point", "data_ptr")
)  # fmt: skip
"""`__get__` is every attribute, such as `shape` and `dtype`."""

_VIEWS = frozenset(
    ("view", "view_as", "reshape", "flatten", "unflatten", "contiguous", "to", "float", "transpose", "t", "permute",
     "unsqueeze", "squeeze", "narrow", "select", "chunk", "split", "split_with_sizes", "unbind", "expand",
     "detach", "__getitem__")
)  # fmt: skip
"""Functions whose results are views, or may be, depending on their arguments."""


def _is_view(result: Any, arguments: Sequence[Any]) -> bool:
    """Is every tensor of the result a piece of one of the arguments?"""
    memory = {x.untyped_storage().data_ptr() for x in arguments if isinstance(x, Tensor)}
    pieces = result if isinstance(result, (list, tuple)) else [result]
    return all(piece.untyped_storage().data_ptr() in memory for piece in pieces)


@functools.cache
def _operation_number(name: str) -> int:
    """By which `csrc/replay.cpp` knows a function; below 0: it does not."""
    number: int = _handle().lullm_operation_number(name.encode())
    return number


def _words_of(name: str, arguments: Sequence[Any]) -> list[int]:
    """A call as `csrc/replay.cpp` reads it: numbers in the lowest bytes of a word, null for None."""
    words = [_operation_number(name)]
    for argument, kind in zip(arguments, getattr(_handle(), name).argtypes, strict=True):
        if kind is ctypes.c_float:
            words.append(int.from_bytes(struct.pack("<f", argument), "little"))
        else:
            words.append(int(argument or 0) & _WORD)
    return words
