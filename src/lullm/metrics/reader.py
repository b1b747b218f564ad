"""Metrics for `LLM.get_metrics`: a registry's families as plain objects, in the form of vLLM's `v1.metrics.reader`."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric as Family


@dataclass
class Metric:
    """One metric with one set of labels. `name`: as on /metrics, without a suffix."""

    name: str
    labels: dict[str, str]


@dataclass
class Counter(Metric):
    """A number that only grows."""

    value: int


@dataclass
class Vector(Metric):
    """Counters by position: guessed tokens that were right."""

    values: list[int]


@dataclass
class Gauge(Metric):
    """A number of this moment."""

    value: float


@dataclass
class Histogram(Metric):
    """Observations. `buckets`: upper bound, as text, -> number of observations up to it; '+Inf' has all of them."""

    count: int
    sum: float
    buckets: dict[str, int]


def read_metrics(registry: "CollectorRegistry") -> list[Metric]:
    """The current values of all metrics of a registry."""
    return [metric for family in registry.collect() for metric in _read(family)]


def _read(family: "Family") -> Iterator[Metric]:
    if family.type == "histogram":
        yield from _histograms(family)
        return
    if family.name.endswith("_per_pos"):
        yield from _vectors(family)
        return
    for sample in family.samples:
        if family.type == "gauge":
            yield Gauge(family.name, dict(sample.labels), sample.value)
        elif sample.name == family.name + "_total":  # the family also has the time of the counter's creation
            yield Counter(family.name, dict(sample.labels), int(sample.value))


def _vectors(family: "Family") -> Iterator[Vector]:
    found: dict[tuple[tuple[str, str], ...], Vector] = {}
    for sample in family.samples:
        if sample.name == family.name + "_total":  # positions come in order
            labels = {name: value for name, value in sample.labels.items() if name != "position"}
            vector = found.setdefault(tuple(sorted(labels.items())), Vector(family.name, labels, []))
            vector.values.append(int(sample.value))
    yield from found.values()


def _histograms(family: "Family") -> Iterator[Histogram]:
    found: dict[tuple[tuple[str, str], ...], Histogram] = {}
    for sample in family.samples:
        labels = {name: value for name, value in sample.labels.items() if name != "le"}
        histogram = found.setdefault(tuple(sorted(labels.items())), Histogram(family.name, labels, 0, 0.0, {}))
        kind = sample.name.removeprefix(family.name)
        if kind == "_bucket":
            histogram.buckets[sample.labels["le"]] = int(sample.value)
        elif kind == "_count":
            histogram.count = int(sample.value)
        elif kind == "_sum":
            histogram.sum = sample.value
    yield from found.values()
