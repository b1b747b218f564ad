"""Reports and forecasts of a hibernation, and the files of its workers."""

from dataclasses import dataclass


def block_file_name(rank: int) -> str:
    """The file of a worker's KV blocks in the folder of a hibernation."""
    return f"kv-{rank}.bin"


@dataclass(frozen=True, slots=True)
class BlockFile:
    """The KV blocks that one worker has written.

    `lens`, `checksums`: of the file's chunks (XXH3-64). `scales`: by layer, the keys' and the values' scales of an fp8
    cache, `[2][Hkv]`; empty for other caches.
    """

    lens: tuple[int, ...]
    checksums: tuple[int, ...]
    scales: tuple[tuple[tuple[float, ...], ...], ...] = ()

    @property
    def num_bytes(self) -> int:
        """Bytes of the blocks; the file ends with the rest of a disk's block."""
        return sum(self.lens)


@dataclass(frozen=True, slots=True)
class HibernationForecast:
    """What `hibernate` would write. `num_requests`: unfinished ones, and those whose last outputs nobody has fetched.

    `kv_bytes`: of the `num_blocks` KV blocks in use or findable, on all workers. `written_bytes`: these and the queue,
    without the manifest's few kilobytes.
    """

    num_requests: int
    num_blocks: int
    kv_bytes: int
    written_bytes: int


@dataclass(frozen=True, slots=True)
class HibernationReport:
    """The result of a `hibernate`; the fields of its forecast, and the folder."""

    path: str
    num_requests: int
    num_blocks: int
    kv_bytes: int
    written_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class ResumeReport:
    """The result of a `resume`.

    Args:
        request_ids: of all requests, in the order of their arrival.
        num_recomputed: requests whose blocks had no room here, so that they are computed again.
        num_blocks: KV blocks that came back, and `restored_bytes` on all workers.
    """

    request_ids: tuple[str, ...]
    num_recomputed: int
    num_blocks: int
    restored_bytes: int
    seconds: float
