"""Backup: contents of tensors in a file while their memory is released, with a checksum that is verified on return."""

import tempfile
from collections.abc import Iterable
from pathlib import Path

import torch
import xxhash

from lullm.errors import WakeUpError


def checksum(tensor: torch.Tensor) -> int:
    """XXH3-64 of a contiguous tensor's bytes; about 10 GB/s, so that verifying costs little beside reading back."""
    return xxhash.xxh3_64_intdigest(_bytes_of(tensor))


class Backup:
    """One file of tensor contents, in the order they were saved.

    Args:
        directory: where the file is made, under a name of its own; None: the system's folder for temporary files.
    """

    def __init__(self, directory: Path | None = None):
        # It has no name, so a killed process leaves nothing behind. Open until `close`.
        self._file = tempfile.TemporaryFile(prefix="lullm-", dir=directory)  # noqa: SIM115
        self._checksums: list[int] = []
        self.num_bytes = 0

    def save(self, tensors: Iterable[torch.Tensor]) -> None:
        """Append the contents. Blocking. Raises OSError when the disk is full."""
        for tensor in tensors:
            data = _bytes_of(tensor.contiguous())
            self._file.write(data)
            self._checksums.append(xxhash.xxh3_64_intdigest(data))
            self.num_bytes += len(data)

    def restore(self, like: Iterable[torch.Tensor]) -> Iterable[torch.Tensor]:
        """The contents again, one tensor for each of `like` (of its shape and dtype), in the order of `save`.

        Raises:
            WakeUpError: a content is not what was saved.
        """
        self._file.seek(0)
        for shape, expected in zip(like, self._checksums, strict=True):
            tensor = torch.empty_like(shape)
            data = _bytes_of(tensor)
            if self._file.readinto(data) != len(data) or xxhash.xxh3_64_intdigest(data) != expected:
                raise WakeUpError("the backup of the KV cache is damaged: its checksum differs from the one at sleep")
            yield tensor

    def close(self) -> None:
        """Drop the file. Idempotent."""
        self._file.close()


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    return memoryview(tensor.view(-1).view(torch.uint8).numpy())
