"""Memory nodes: the place of an arena's pages on a machine with several nodes (NUMA).

Any free thread takes the next piece of work, so no part of the weights belongs to one thread and its node. Pages are
therefore spread over the nodes in turn, so that all nodes are read at the same time. The system's rule stays where the
process may use the CPUs of one node only, and where a policy is set (`numactl`): a page comes from the node of the
thread that first touches it. Not yet run on a machine with several nodes.
"""

import ctypes
import platform
from collections.abc import Collection

from lullm.log import get_logger
from lullm.machine.processor import allowed_cpus, numa_nodes

logger = get_logger(__name__)

_SYSCALLS = {"x86_64": (237, 239), "aarch64": (235, 236)}  # mbind, get_mempolicy
_MPOL_DEFAULT, _MPOL_INTERLEAVE = 0, 3

_libc = ctypes.CDLL(None, use_errno=True)


def spread(address: int, num_bytes: int) -> None:
    """Take new pages of a range from all nodes whose CPUs may be used, if there are several.

    If the system refuses, the memory works anyway.
    """
    nodes = numa_nodes(allowed_cpus())
    if len(nodes) > 1 and not has_policy() and not interleave(address, num_bytes, nodes):
        logger.debug("memory is not spread over the nodes %s: the system refuses", nodes)


def place_near(address: int, num_bytes: int, node: int) -> None:
    """Take new pages of a range from one node, and from others once it is full, unless the process has a policy."""
    if not has_policy() and not interleave(address, num_bytes, [node]):
        logger.debug("memory is not placed on the node %d: the system refuses", node)


def interleave(address: int, num_bytes: int, nodes: Collection[int]) -> bool:
    """Take the pages of a range from these nodes in turn (`mbind(2)`). Returns whether the system agreed."""
    if platform.machine() not in _SYSCALLS:
        return False
    mask = (ctypes.c_ulong * (max(nodes) // 64 + 1))()
    for node in nodes:
        mask[node // 64] |= 1 << node % 64
    # The kernel reads one bit less than the given number.
    arguments = (address, num_bytes, _MPOL_INTERLEAVE, ctypes.addressof(mask), len(mask) * 64 + 1, 0)
    failed: int = _libc.syscall(_SYSCALLS[platform.machine()][0], *map(ctypes.c_long, arguments))
    return failed == 0


def has_policy() -> bool:
    """Whether a memory policy is set for this thread; True if the system cannot tell."""
    if platform.machine() not in _SYSCALLS:
        return True
    mode = ctypes.c_int(-1)
    arguments = (ctypes.addressof(mode), 0, 0, 0, 0)
    is_known = _libc.syscall(_SYSCALLS[platform.machine()][1], *map(ctypes.c_long, arguments)) == 0
    return not is_known or mode.value != _MPOL_DEFAULT
