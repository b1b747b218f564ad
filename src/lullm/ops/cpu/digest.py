"""NativeDigest: checksums by native code, which copies in the same pass (`csrc/digest/`)."""

import ctypes

from torch import Tensor

from lullm.errors import UnsupportedError
from lullm.ops.cpu.library import absence, load_library


class NativeDigest:
    """Implements `Digest`, in 128 bits. A change within one aligned word of eight bytes changes the value for certain.

    Any other change goes unnoticed with a probability of about 2^-64, unless it is made on purpose.

    Raises:
        UnsupportedError: there is no native library.
    """

    def __init__(self) -> None:
        library = load_library()
        if library is None:
            raise UnsupportedError(f"there are no native checksums: {absence()}")
        self._library = library.handle
        self._state = ctypes.create_string_buffer(self._library.lullm_digest_bytes())
        self._library.lullm_begin_digest(self._state)

    def update(self, source: Tensor) -> None:
        self._library.lullm_extend_digest(self._state, _bytes_at(source), None, len(source))

    def copy(self, destination: Tensor, source: Tensor) -> None:
        assert len(destination) == len(source), "a copy has one size"
        self._library.lullm_extend_digest(self._state, _bytes_at(source), _bytes_at(destination), len(source))

    def value(self) -> int:
        halves = (ctypes.c_uint64 * 2)()
        self._library.lullm_digest_value(self._state, halves)
        return halves[0] << 64 | halves[1]


def _bytes_at(tensor: Tensor) -> int:
    assert tensor.device.type == "cpu" and tensor.itemsize == 1 and tensor.is_contiguous(), "flat bytes of the host"
    return tensor.data_ptr()
