"""The control groups of this process, whose limits on processor time and memory it has to stay within."""

from collections.abc import Iterator
from pathlib import Path


def group_folders(controller: str, root: Path = Path("/")) -> Iterator[Path]:
    """The folders of this process's groups for a controller ('cpu', 'memory'), and of all groups above them.

    A group's limit holds for all groups below it, so the smallest limit up to the root counts. Version 2 has one tree
    for all controllers, version 1 one for each. In a container the group's path may be the host's, so the mount's root
    counts, too.
    """
    for line in (read_text(root / "proc/self/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        mount = root / "sys/fs/cgroup" / controllers
        if controllers and controller not in controllers.split(","):
            continue
        if controllers and not mount.is_dir():
            mount = mount.with_name(controller)
        group = mount / path.lstrip("/")
        for folder in (group, *group.parents):
            if folder == mount.parent:
                break
            yield folder


def read_text(path: Path) -> str | None:
    """The text of a file of the kernel; None: there is no such file, or nothing in it."""
    try:
        return path.read_text().strip() or None
    except OSError:
        return None
