"""A unix socket in a file that only its owner can open."""

import contextlib
import fcntl
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

from lullm.errors import ConfigError

MAX_PATH_BYTES = 107  # of sockaddr_un, without its zero
BACKLOG = 128


def bind_unix(path: str) -> socket.socket:
    """A socket that listens in a new file of mode 0600. Replaces a file that a dead server has left.

    It listens at once, and early clients wait. A socket that is only bound looks like a dead one, and a second server
    would take its file.

    Raises:
        ConfigError: a server listens there, the file is not a socket, or it cannot be made.
    """
    if len(os.fsencode(path)) > MAX_PATH_BYTES:
        raise ConfigError(f"uds: the path of a unix socket has at most {MAX_PATH_BYTES} bytes; choose a shorter one")
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _alone_in(Path(path).parent):
            _remove_stale(path)
            sock.bind(path)
            os.chmod(path, 0o600)  # before `listen`, from which on clients can connect
            sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        raise ConfigError(f"cannot listen on {path}: {error}; choose another --uds") from None
    except ConfigError:
        sock.close()
        raise
    return sock


def remove_unix(sock: socket.socket, path: str, inode: int) -> None:
    """Close the socket and remove its file, unless another file has replaced it."""
    with contextlib.suppress(OSError), _alone_in(Path(path).parent):
        if os.lstat(path).st_ino == inode:
            os.unlink(path)
    sock.close()


@contextlib.contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Lock a folder's sockets for looking and changing, so that two servers do not take one file."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _remove_stale(path: str) -> None:
    """Remove the file of a server that has ended. Raises ConfigError: it is another file, or a server listens."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise ConfigError(f"cannot listen on {path}: the file exists and is no socket; choose another --uds")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)  # a server whose queue is full is alive, too
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
        except BlockingIOError:
            pass
    raise ConfigError(f"cannot listen on {path}: another server listens there; choose another --uds")
