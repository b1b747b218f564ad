"""What an engine asks of a Ray cluster, and the errors that say what is there. Without Ray."""

import socket
import sys

import pytest

from lullm.config.engine import EngineConfig
from lullm.config.model import ModelConfig
from lullm.errors import ConfigError, UnsupportedError
from lullm.executor.ray.actors import _cause
from lullm.executor.ray.cluster import Node, Reservation, WorkerNeeds, assign, connect
from lullm.executor.ray.executor import _configs
from lullm.weights.folder import DEMO_FOLDER


def node(name, **free):
    return Node(name, f"10.0.0.{ord(name)}", free, {"CPU": 8.0, "GPU": 4.0})


def test_a_gpu_for_each():
    nodes = [node("a", CPU=8.0, GPU=3.0), node("b", CPU=8.0, GPU=2.0)]
    places, amount = assign(nodes, WorkerNeeds(2, 2, "GPU", None))
    assert ([each.node_id for each in places], amount) == (list("aabb"), 1)


def test_cores_are_shared_or_as_wished():
    nodes = [node("a", CPU=8.0), node("b", CPU=4.0)]
    assert assign(nodes, WorkerNeeds(1, 2, "CPU", None)) == ([nodes[0]] * 2, 4)
    assert assign(nodes, WorkerNeeds(1, 2, "CPU", 3)) == ([nodes[0]] * 2, 3)
    assert assign(nodes, WorkerNeeds(2, 1, "CPU", 4)) == ([nodes[0]] * 2, 4)


@pytest.mark.parametrize(
    ("needs", "words"),
    [
        (
            WorkerNeeds(1, 4, "GPU", None),
            r"4 workers need 1 GPU each.*10.0.0.97: 2 of 4; 10.0.0.98: 0 of 4; lower tensor_par",
        ),
        (WorkerNeeds(2, 1, "CPU", 5), r"2 workers need 5 CPUs each.*10.0.0.97: 6 of 8; 10.0.0.98: 0 of 8; lower"),
        (WorkerNeeds(8, 1, "CPU", None), r"8 workers need 1 CPU each.*end other jobs, or add nodes \(ray start"),
    ],
)
def test_too_little(needs, words):
    with pytest.raises(ConfigError, match=words):
        assign([node("a", CPU=6.0, GPU=2.0), node("b")], needs)


def test_ray_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UnsupportedError, match=r"needs Ray: pip install 'lullm\[ray\]'"):
        connect()


def test_no_cluster_there(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    for address, words in (
        (
            f"127.0.0.1:{port}",
            f"no Ray cluster can be reached at RAY_ADDRESS='127.0.0.1:{port}': .*refused; ",
        ),
        ("somewhere", "'somewhere' is not of the form HOST:PORT; start one"),
        ("ray://10.0.0.1:10001", "is that of a Ray client; run the engine on a node of the cluster"),
    ):
        monkeypatch.setenv("RAY_ADDRESS", address)
        with pytest.raises(ConfigError, match=words):
            connect()


def test_the_line_that_says_what_happened():
    words = "\x1b[36mray::WorkerActor.run()\x1b[39m\n  File 'x.py', line 3\nModuleNotFoundError: No module named 'x'"
    assert _cause(RuntimeError(words)) == "ModuleNotFoundError: No module named 'x'"
    assert _cause(RuntimeError("The actor is dead because its node has died.\nfurther")) == (
        "The actor is dead because its node has died."
    )
    assert _cause(KeyError()) == "KeyError"


def test_workers_divide_what_their_own_node_has():
    model = ModelConfig.from_folder(DEMO_FOLDER)
    config = EngineConfig(threads=6, swap_space=3.0, gpu_memory_utilization=0.6).resolve(model)
    nodes = node("a"), node("b")
    found = _configs(config, Reservation((nodes[0], nodes[0], nodes[1]), 5, None))
    assert [each.gpu_memory_utilization for each in found] == [0.3, 0.3, 0.6]
    assert {(each.threads, each.swap_space, each.distributed_executor_backend) for each in found} == {(5, 1.0, None)}
