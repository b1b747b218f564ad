"""The folder of a hibernation: a manifest, the queue, and a file of KV blocks from every worker.

    hibernation.json   FORMAT, what the resuming engine must be, bytes and checksums of the other files; and its own
    queue.msgpack      requests with their tokens and texts, block tables
    kv-RANK.bin        KV blocks in chunks

It is written beside its place under another name, and renamed once the disk has all of it. If a process is killed
before that, the next one removes the remains. Only its owner may read it, since it holds prompts. Bytes are in this
machine's order.
"""

import contextlib
import errno
import fcntl
import glob
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import xxhash

from lullm.errors import HibernationError
from lullm.types.hibernation.report import BlockFile, block_file_name
from lullm.units import format_bytes, round_up

FORMAT = 2
"""Another number: other versions of lullm cannot read it. To be raised when a file's bytes mean something else; what
the queue's structs hold is found by itself (`queue.layout`)."""
MANIFEST_FILE = "hibernation.json"
QUEUE_FILE = "queue.msgpack"
_OWN_FILE = re.compile(r"hibernation\.json|queue\.msgpack|kv-\d+\.bin")
_DISK_BLOCK = 4096
_LARGEST_MANIFEST = 1 << 30


class Manifest(msgspec.Struct, frozen=True):
    """The contents of the manifest.

    `version`: of lullm. `layout`: of its queue (`queue.layout`). `identity`: what must be equal in the resuming engine
    (`identity`). `model`, `revision`: where the weights came from, for people. `is_modified`: weights differed from
    that checkpoint.
    """

    format: int
    version: str
    layout: str
    identity: dict[str, int | str]
    model: str
    revision: str | None
    is_modified: bool
    num_requests: int
    num_blocks: int
    queue_bytes: int
    queue_checksum: str
    files: list[BlockFile]


class _Sealed(msgspec.Struct, frozen=True):
    """A manifest, and the checksum of its text."""

    checksum: str
    manifest: msgspec.Raw


class _FormatOnly(msgspec.Struct, frozen=True):
    format: int
    version: str = "unknown"
    layout: str = "unknown"


def checksum_of(data: bytes) -> str:
    """The checksum of a file that is read whole."""
    return xxhash.xxh3_128_hexdigest(data)


@contextlib.contextmanager
def new_folder(path: str | os.PathLike[str], num_bytes: int) -> Iterator[Path]:
    """A temporary folder; at the end of the block it takes the place `path`, in which an older hibernation may lie.

    After an error in the block there is no trace of it.

    Args:
        num_bytes: about to be written.

    Raises:
        HibernationError: something else lies there, or the system refuses: the disk is full.
    """
    place = check_place(path)
    _remove_remains(place)
    try:
        free = shutil.disk_usage(place.parent).free
        if free < num_bytes:
            raise OSError(errno.ENOSPC, f"{format_bytes(num_bytes)} are needed, {format_bytes(free)} are free")
        folder = Path(tempfile.mkdtemp(prefix=f".{place.name}.", dir=place.parent))  # mode 0700
        try:
            with _opened(folder) as descriptor:
                _claim(descriptor)
                yield folder
                _sync(folder)
                _put_in_place(folder, place)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
    except OSError as error:
        raise HibernationError(f"cannot hibernate to {place}: {error.strerror or error}; the engine goes on") from error


def write_file(path: Path, data: bytes) -> None:
    """Write a new file that only its owner may read. Raises OSError."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write the manifest, after the other files. Raises OSError."""
    text = msgspec.json.encode(manifest)
    sealed = _Sealed(checksum_of(text), msgspec.Raw(text))
    write_file(folder / MANIFEST_FILE, msgspec.json.encode(sealed))


def read_folder(path: str | os.PathLike[str], version: str, layout: str) -> tuple[Path, Manifest, bytes]:
    """(the folder, its manifest, the queue's bytes); all files have the right sizes.

    Args:
        version: of lullm here; layout: of its queues.

    Raises:
        HibernationError: there is no hibernation, or one of another version, or a damaged one.
    """
    folder = _place(path)
    manifest = _read_manifest(folder, version, layout)
    queue = _read_whole(folder / QUEUE_FILE, manifest.queue_bytes)
    if len(queue) != manifest.queue_bytes or checksum_of(queue) != manifest.queue_checksum:
        raise HibernationError(
            f"{folder / QUEUE_FILE} is damaged: its checksum differs from the one when it was written"
        )
    for rank, file in enumerate(manifest.files):
        path_of_file = folder / block_file_name(rank)
        try:
            status = path_of_file.stat()
        except OSError as error:
            raise HibernationError(f"{path_of_file} cannot be read: {error.strerror}") from None
        _check_regular(path_of_file, status)
        found = status.st_size
        if found != _file_bytes(file):
            raise HibernationError(f"{path_of_file} is damaged: it has {found} bytes, {_file_bytes(file)} were written")
    return folder, manifest, queue


def _read_manifest(folder: Path, version: str, layout: str) -> Manifest:
    path = folder / MANIFEST_FILE
    data = _read_whole(path, _LARGEST_MANIFEST)
    try:
        sealed = msgspec.json.decode(data, type=_Sealed)
        text = bytes(sealed.manifest)
        if checksum_of(text) != sealed.checksum:
            raise ValueError("its checksum differs from the one when it was written")
        found = msgspec.json.decode(text, type=_FormatOnly)
        if (found.format, found.version, found.layout) == (FORMAT, version, layout):
            return msgspec.json.decode(text, type=Manifest)
    except (msgspec.MsgspecError, ValueError) as error:
        raise HibernationError(f"{path} is damaged: {error}") from None
    # Versions of development have the same number.
    raise HibernationError(
        f"{folder} was written by lullm {found.version} in format {found.format} (layout {found.layout}); this is "
        f"lullm {version}, which reads format {FORMAT} (layout {layout}) of its own version only: resume it with the "
        "lullm that wrote it, or remove the folder and send the requests again"
    )


def _read_whole(path: Path, most: int) -> bytes:
    try:
        # Without O_NONBLOCK the open of a FIFO waits for a writer.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            _check_regular(path, os.fstat(file.fileno()))
            return file.read(most + 1)
    except FileNotFoundError:
        raise HibernationError(f"there is no hibernation in {path.parent}: {path.name} is missing") from None
    except OSError as error:
        raise HibernationError(f"{path} cannot be read: {error.strerror}") from None


def _check_regular(path: Path, status: os.stat_result) -> None:
    """Raises HibernationError: a folder, a pipe or a device, which may wait or never end."""
    if not stat.S_ISREG(status.st_mode):
        raise HibernationError(f"{path} cannot be read: it is not a regular file")


def _file_bytes(file: BlockFile) -> int:
    return sum(round_up(num_bytes, _DISK_BLOCK) for num_bytes in file.lens)


def _place(path: Any) -> Path:
    """The absolute path, through links. Raises HibernationError: no path, or it has no folder to lie in."""
    try:
        place = Path(os.fsdecode(path)).expanduser().resolve()
    except (TypeError, ValueError, RuntimeError, OSError) as error:
        raise HibernationError(f"{path!r} is no path of a folder: {error}") from None
    if not place.name:
        raise HibernationError(f"{place} cannot be the folder of a hibernation; give one inside it")
    return place


def check_place(path: str | os.PathLike[str]) -> Path:
    """The absolute path, where a hibernation can be written, in place of an older one or of nothing.

    Raises HibernationError: what lies there is no old hibernation, or there is no folder above it.
    """
    place = _place(path)
    if not place.parent.is_dir():
        raise HibernationError(f"cannot hibernate to {place}: there is no folder {place.parent}; make it first")
    if not os.access(place.parent, os.W_OK | os.X_OK):
        raise HibernationError(f"cannot hibernate to {place}: {place.parent} may not be written to")
    if not os.path.lexists(place):
        return place
    try:
        names = os.listdir(place) if place.is_dir() else None
    except OSError as error:
        raise HibernationError(f"cannot hibernate to {place}: {error.strerror}") from None
    is_own = names is not None and (not names or (MANIFEST_FILE in names and all(map(_OWN_FILE.fullmatch, names))))
    if not is_own:
        raise HibernationError(
            f"cannot hibernate to {place}: something else lies there, and only an older hibernation is replaced; give "
            "another path"
        )
    return place


def _put_in_place(folder: Path, place: Path) -> None:
    """Give the folder its name. An older hibernation steps aside, and back again if that fails. Raises OSError."""
    old = None
    if place.exists():
        old = Path(tempfile.mkdtemp(prefix=f".{place.name}.", dir=place.parent))
        os.rename(place, old)
    try:
        os.rename(folder, place)
    except BaseException:
        if old is not None:
            os.rename(old, place)
        raise
    _sync(place.parent)
    if old is not None:
        shutil.rmtree(old, ignore_errors=True)


def _remove_remains(place: Path) -> None:
    """Remove folders that killed processes have begun to write for `place`. A whole one stays, for its owner to see."""
    for remains in place.parent.glob(f".{glob.escape(place.name)}.????????"):
        with contextlib.suppress(OSError), _opened(remains) as descriptor:
            names = os.listdir(descriptor)
            if _claim(descriptor) and MANIFEST_FILE not in names and all(map(_OWN_FILE.fullmatch, names)):
                shutil.rmtree(remains)


def _claim(folder: int) -> bool:
    """Lock an open folder for as long as it is open, or this process lives. False: another one has it."""
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # or the file system has no locks; then remains stay
        return False
    return True


def _sync(folder: Path) -> None:
    """Wait until the disk has the names in a folder."""
    with _opened(folder) as descriptor:
        os.fsync(descriptor)


@contextlib.contextmanager
def _opened(folder: Path) -> Iterator[int]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
