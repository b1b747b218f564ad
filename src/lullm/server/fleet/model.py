"""The states of models under the names of other servers."""

from typing import Any

from lullm.fleet.record import ModelState
from lullm.fleet.status import ModelStatus

_LLAMA_CPP: dict[ModelState, str] = {
    "unloaded": "unloaded",
    "loading": "loading",
    "awake": "loaded",
    "falling_asleep": "loaded",
    "sleeping": "sleeping",
    "waking": "loading",
    "unloading": "unloaded",
    "failed": "unloaded",
}
"""State -> `status.value` of llama.cpp's router."""
_LLAMA_SWAP: dict[ModelState, str] = {
    "loading": "starting",
    "awake": "ready",
    "falling_asleep": "stopping",
    "sleeping": "sleeping",
    "waking": "starting",
    "unloading": "stopping",
}
"""State -> `state` of llama-swap; others do not run."""


def status_fields(status: ModelStatus) -> dict[str, Any]:
    """More fields of a model's card: its state here, and as llama.cpp's router says it."""
    shown: dict[str, Any] = {"value": _LLAMA_CPP[status.state]}
    if status.state == "failed":
        shown |= {"failed": True, "reason": status.reason}
    return {
        "state": status.state,
        "status": shown,
        "memory_bytes": status.held_bytes,
        "needed_memory_bytes": status.need.awake_bytes,
    }


def running_fields(status: ModelStatus, sleeps_in_s: float | None) -> dict[str, Any] | None:
    """A model in llama-swap's list of those that run; None: it does not. `ttl`: seconds until it sleeps; 0: never."""
    state = _LLAMA_SWAP.get(status.state)
    if state is None:
        return None
    return {
        "model": status.name,
        "name": status.name,
        "state": state,
        "ttl": 0 if sleeps_in_s is None else round(sleeps_in_s),
        "running": status.num_running,
        "waiting": status.num_waiting,
        "memory_bytes": status.held_bytes,
    }
