"""Transfer: ordered copies between host memory and the tensors of a back end.

A device copies on a stream of the transfer: `copy_out` and `copy_in` return at once, and `wait` blocks until the bytes
have arrived. Tensors of the host are copied synchronously, whatever the back end.
"""

from types import TracebackType

import numpy as np
import torch

from lullm.arena.backend import Backend, CopyKind

_DLPACK_CPU = 1


class Transfer:
    """A context manager: at the end of its `with` block all copies have arrived, after an error, too.

    The stream is not ordered against others. A source must be computed before it is passed here; a copy must be waited
    for before its memory is used, overwritten or released. Host memory should be pinned: with other memory CUDA and HIP
    block the caller, and Ascend refuses.
    """

    def __init__(self, backend: Backend):
        self._backend = backend
        self._stream = backend.open_stream()

    def __enter__(self) -> "Transfer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stream.close()

    def copy_out(self, destination: torch.Tensor, source: torch.Tensor) -> None:
        """From a tensor of the back end, or of the host, to host memory; both flat uint8 of one size."""
        self._copy(destination, source, CopyKind.TO_HOST, source)

    def copy_in(self, destination: torch.Tensor, source: torch.Tensor) -> None:
        """From host memory to a tensor of the back end, or of the host; both flat uint8 of one size."""
        self._copy(destination, source, CopyKind.TO_ARENA, destination)

    def copies_on_host(self, tensor: torch.Tensor) -> bool:
        """Whether the host can read the tensor itself, so that its copies are synchronous."""
        is_foreign = tensor.device.type == "cpu" and self._backend.dlpack_device[0] != _DLPACK_CPU
        return self._backend.faults_in or is_foreign

    def copy_on_host(self, destination: torch.Tensor, source: torch.Tensor) -> None:
        """Between tensors that the host can read, on the calling thread: torch would start several for each."""
        np.copyto(destination.numpy(), source.numpy())

    def mark(self) -> int:
        """A point after all copies so far; `wait` takes it once. Does not block."""
        return self._stream.mark()

    def wait(self, mark: int | None = None) -> None:
        """Block until the copies before the mark have arrived; None: all so far."""
        self._stream.wait(self._stream.mark() if mark is None else mark)

    def _copy(self, destination: torch.Tensor, source: torch.Tensor, kind: CopyKind, near: torch.Tensor) -> None:
        if self.copies_on_host(near):
            self.copy_on_host(destination, source)
        else:
            self._backend.copy(destination.data_ptr(), source.data_ptr(), source.numel(), kind, self._stream.handle)
