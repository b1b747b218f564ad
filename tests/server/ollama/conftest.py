"""Official clients, closed at the end."""

from collections.abc import Callable, Iterator

import ollama
import pytest


def _connecting() -> Iterator[Callable[..., ollama.Client]]:
    """`connect(server, **options)`."""
    clients: list[ollama.Client] = []

    def connect(server, **options):
        clients.append(ollama.Client(host=server.url, timeout=20, **options))
        return clients[-1]

    yield connect
    for client in clients:
        client.close()


connect = pytest.fixture(_connecting, name="connect")
connect_for_module = pytest.fixture(_connecting, name="connect_for_module", scope="module")


@pytest.fixture(scope="module")
def client(server, connect_for_module) -> ollama.Client:
    """One client of a module's server."""
    return connect_for_module(server)
