"""Cluster: the free resources of a Ray cluster's nodes, and a place for every worker of an engine.

Ray gets a bundle for each worker and the node of each bundle; so the workers of a stage come to one node.
"""

import contextlib
import os
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lullm.errors import ConfigError, UnsupportedError
from lullm.executor.ray.assignment import assign_nodes, most_cores
from lullm.log import get_logger

logger = get_logger(__name__)

FREE_S = 10.0
"""Seconds for other jobs to return what they have just been told to; Ray's nodes report every 0.1 s."""
RELEASE_S = 3.0
RESERVE_S = 30.0
"""Seconds for bundles that were free a moment ago; after that another job has taken them."""
_REACH_S = 5.0
NODE_LABEL = "ray.io/node-id"


@dataclass(frozen=True, slots=True)
class Node:
    """A live node. `free`, `total`: amounts of its resources ('CPU', 'GPU')."""

    node_id: str
    address: str
    free: Mapping[str, float]
    total: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class WorkerNeeds:
    """An engine's demand: stages of `tensor_size` workers each.

    Attributes:
        resource: 'GPU', one for each worker, or 'CPU'.
        cores: of each worker; None: as many as there are.
    """

    num_stages: int
    tensor_size: int
    resource: str
    cores: int | None

    @property
    def num_workers(self) -> int:
        return self.num_stages * self.tensor_size


@dataclass(frozen=True, slots=True)
class Reservation:
    """Places for the workers. `nodes`: by rank. `amount`: of the resource, for each. `group`: Ray's placement group."""

    nodes: tuple[Node, ...]
    amount: int
    group: Any


def import_ray() -> Any:
    """The package. Raises UnsupportedError: it is not installed."""
    try:
        import ray
    except ImportError:
        raise UnsupportedError(
            "distributed_executor_backend='ray' needs Ray: pip install 'lullm[ray]'; on one machine 'mp' needs nothing"
        ) from None
    return ray


def connect() -> Any:
    """Ray, connected: by the program itself, to the cluster at RAY_ADDRESS, to a running one, or to a new one on this
    machine.

    Blocking.

    Raises:
        UnsupportedError: Ray is not installed.
        ConfigError: there is no cluster at RAY_ADDRESS.
    """
    ray = import_ray()
    if ray.is_initialized():
        return ray
    address = os.environ.get("RAY_ADDRESS")
    try:
        _check_reachable(address)
        ray.init(log_to_driver=False, logging_level="WARNING", include_dashboard=None if address else False)
    except ConfigError:
        raise
    except (RuntimeError, ValueError, OSError) as error:
        where = f"at RAY_ADDRESS={address!r}" if address else "on this machine"
        first_line = (str(error).splitlines() or [""])[0]
        raise ConfigError(
            f"no Ray cluster can be reached {where}: {first_line}; start one (ray start --head --port=6379) and give "
            "HOST:6379, or leave RAY_ADDRESS out for one of this machine alone"
        ) from error
    return ray


def _check_reachable(address: str | None) -> None:
    """Check that the address answers. Ray itself would try for minutes. Raises ConfigError, OSError, ValueError."""
    if not address or address in ("auto", "local"):
        return
    if address.startswith("ray://"):
        raise ConfigError(
            f"RAY_ADDRESS={address!r} is that of a Ray client; run the engine on a node of the cluster, with "
            "RAY_ADDRESS=HOST:6379, or submit it as a job"
        )
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise ValueError(f"{address!r} is not of the form HOST:PORT")
    socket.create_connection((host, int(port)), timeout=_REACH_S).close()


def nodes_of(ray: Any) -> list[Node]:
    """The live nodes: the engine's own first, then by free resources."""
    free = ray._private.state.available_resources_per_node()
    own = ray.get_runtime_context().get_node_id()
    found = [
        Node(each["NodeID"], each["NodeManagerAddress"], free.get(each["NodeID"], {}), each["Resources"])
        for each in ray.nodes()
        if each["Alive"]
    ]
    return sorted(found, key=lambda node: (node.node_id != own, -node.free.get("GPU", 0), -node.free.get("CPU", 0)))


def assign(nodes: Sequence[Node], needs: WorkerNeeds) -> tuple[list[Node], int]:
    """(the node of every rank, the amount of the resource per worker). Raises ConfigError: there is too little."""
    by_id = {node.node_id: node for node in nodes}
    free = {node.node_id: int(node.free.get(needs.resource, 0)) for node in nodes}
    amount = 1
    if needs.resource == "CPU":
        amount = needs.cores or most_cores(free, needs.num_stages, needs.tensor_size)
    slots = {node_id: count // amount if amount else 0 for node_id, count in free.items()}
    found = assign_nodes(slots, needs.num_stages, needs.tensor_size)
    if found is None:
        raise too_little(nodes, needs, amount)
    return [by_id[node_id] for node_id in found], amount


def too_little(nodes: Sequence[Node], needs: WorkerNeeds, amount: int) -> ConfigError:
    """The error with the cluster's and the requested resources."""
    what = needs.resource
    there = [f"{node.address}: {node.free.get(what, 0):g} of {node.total.get(what, 0):g}" for node in nodes]
    each = f"{max(amount, 1)} {what}" + ("s" if amount > 1 else "")
    return ConfigError(
        f"{needs.num_workers} workers need {each} each, and Ray's nodes have free: {'; '.join(there)}; lower "
        "tensor_parallel_size or pipeline_parallel_size, end other jobs, or add nodes (ray start --address=HOST:6379)"
    )


@contextlib.contextmanager
def _group_on_failure(ray: Any, group: Any) -> Any:
    try:
        yield
    except BaseException:
        remove(ray, group)
        raise


def reserve(ray: Any, needs: WorkerNeeds) -> Reservation:
    """Reserve a bundle for every worker, in the order of ranks. Blocking.

    Raises:
        ConfigError: the cluster has too little, or another job was quicker.
    """
    places, amount = _assign_in_time(ray, needs)
    bundles = [{needs.resource: amount} for _ in places]
    selectors = [{NODE_LABEL: node.node_id} for node in places]
    group = ray.util.placement_group(bundles, strategy="PACK", bundle_label_selector=selectors)
    with _group_on_failure(ray, group):
        if not group.wait(RESERVE_S):
            raise too_little(nodes_of(ray), needs, amount)
    logger.info("ray: workers on %s", ", ".join(node.address for node in places))
    return Reservation(tuple(places), amount, group)


def _assign_in_time(ray: Any, needs: WorkerNeeds) -> tuple[list[Node], int]:
    """See `assign`; waits for resources that an earlier engine is giving back, if they could be enough."""
    deadline = time.monotonic() + FREE_S
    while True:
        nodes = nodes_of(ray)
        try:
            return assign(nodes, needs)
        except ConfigError:
            assign([replace(node, free=node.total) for node in nodes], needs)
            if time.monotonic() > deadline:
                raise
        time.sleep(0.1)


def release(ray: Any, reserved: Reservation, resource: str) -> None:
    """Return the bundles, and wait until Ray's nodes report it: the next engine takes as many cores as are free."""
    remove(ray, reserved.group)
    before = {node.node_id: node.free.get(resource, 0) for node in reserved.nodes}
    deadline = time.monotonic() + RELEASE_S
    with contextlib.suppress(Exception):  # the cluster may be gone
        while time.monotonic() < deadline:
            now = {node.node_id: node.free.get(resource, 0) for node in nodes_of(ray)}
            if all(now.get(node_id, free) >= free for node_id, free in before.items()):
                return
            time.sleep(0.05)


def remove(ray: Any, group: Any) -> None:
    """Return the bundles. Idempotent."""
    with contextlib.suppress(Exception):  # the cluster may be gone, and the bundles with it
        ray.util.remove_placement_group(group)
