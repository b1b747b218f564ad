"""Metrics of a fleet, and the metrics of several models in one text."""

from collections.abc import Iterable, Iterator, Sequence
from typing import get_args

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from lullm.fleet.fleet import Fleet
from lullm.fleet.record import ModelState
from lullm.server.metrics.registry import Metrics
from lullm.server.options import MetricsPrefix

_WAITS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)


class FleetMetrics(Collector):
    """States, memory and changes of a fleet's models, read at a scrape; and how long requests waited for them."""

    def __init__(self, fleet: Fleet):
        self._fleet = fleet
        self.registry = CollectorRegistry()
        self.registry.register(self)
        self._waits = Histogram(
            "lullm_model_wait_seconds",
            "Time that a request waited until its model was awake.",
            labelnames=["model_name"],
            buckets=_WAITS,
            registry=self.registry,
        )
        for name in fleet.members:
            self._waits.labels(name)
        fleet.turns.observe_waits(lambda name, seconds: self._waits.labels(name).observe(seconds))

    def collect(self) -> Iterator[Metric]:
        """All families but the waits."""
        members = self._fleet.members.values()
        states = GaugeMetricFamily(
            "lullm_model_state", "1 for the state that a model is in.", labels=["model_name", "state"]
        )
        held = GaugeMetricFamily("lullm_model_memory_bytes", "Of the budget, held by a model.", labels=["model_name"])
        needed = GaugeMetricFamily(
            "lullm_model_needed_memory_bytes", "What a model holds while it is awake.", labels=["model_name"]
        )
        waiting = GaugeMetricFamily(
            "lullm_model_requests_waiting", "Requests that wait for a model to be awake.", labels=["model_name"]
        )
        for member in members:
            status = member.status
            for state in get_args(ModelState):
                states.add_metric([member.name, state], float(status.state == state))
            held.add_metric([member.name], status.held_bytes)
            needed.add_metric([member.name], status.need.awake_bytes)
            waiting.add_metric([member.name], status.num_waiting)
        yield from (states, held, needed, waiting)
        budget = GaugeMetricFamily("lullm_memory_budget_bytes", "Memory for all models together.")
        budget.add_metric([], self._fleet.budget_bytes)
        yield budget
        changes = CounterMetricFamily(
            "lullm_model_changes",
            "Times that a model was loaded, woken, put to sleep or unloaded, and why.",
            labels=["model_name", "change", "cause"],
        )
        for (name, change, cause), num in sorted(self._fleet.policy.changes.items()):
            changes.add_metric([name, change, cause], num)
        yield changes


class _Joined(CollectorRegistry):
    """Several registries as one: a family that several have is one with all their samples."""

    def __init__(self, registries: Iterable[CollectorRegistry]):
        super().__init__()
        self._registries = list(registries)

    def collect(self) -> Iterator[Metric]:
        families: dict[str, Metric] = {}
        for registry in self._registries:
            for family in registry.collect():
                known = families.setdefault(family.name, family)
                if known is not family:
                    known.samples += family.samples
        yield from families.values()


def exposition(models: Sequence[Metrics], fleet: FleetMetrics | None, prefix: MetricsPrefix) -> bytes:
    """The metrics of all models under the chosen names, in Prometheus' text form."""
    if fleet is None:
        return models[0].exposition()
    own, vllms = _Joined([fleet.registry, *(m.registry for m in models)]), _Joined(m.vllm.registry for m in models)
    wanted = {"lullm": (own,), "vllm": (vllms,)}
    return b"".join(map(generate_latest, wanted.get(prefix, (own, vllms))))
