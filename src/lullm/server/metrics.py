"""Prometheus metrics of one server, in a registry of its own.

Gauges and counters are read from the engine's stats at the moment of the scrape; the histograms of latencies are fed
with each request's `RequestMetrics` when it ends.
"""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from lullm.engine.protocol import EngineClient
from lullm.types.outputs import RequestOutput

_FAST = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.5)
_SLOW = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)

_GAUGES = (
    ("num_requests_running", "Requests in the running batch.", "num_running"),
    ("num_requests_waiting", "Requests that wait to be scheduled.", "num_waiting"),
    ("num_requests_swapped", "Requests whose KV blocks are swapped out.", "num_swapped"),
    ("num_kv_blocks", "KV blocks there are.", "num_blocks"),
    ("num_kv_blocks_used", "KV blocks that requests hold.", "num_used_blocks"),
    ("num_host_kv_blocks", "KV blocks of the host pool.", "num_host_blocks"),
    ("num_host_kv_blocks_used", "Host KV blocks that swapped requests hold.", "num_used_host_blocks"),
    ("kv_cache_usage_ratio", "Share of the KV blocks that requests hold, 0 to 1.", "kv_cache_usage"),
)
_COUNTERS = (
    ("prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", "prefix_cache_queries_total"),
    ("prefix_cache_hits", "Prompt tokens found in the prefix cache.", "prefix_cache_hits_total"),
    ("prefix_cache_host_hits", "Prompt tokens found in the host pool.", "prefix_cache_host_hits_total"),
    ("prompt_tokens", "Prompt tokens taken in.", "prompt_tokens_total"),
    ("generation_tokens", "Tokens generated.", "generation_tokens_total"),
    ("steps", "Steps the engine ran.", "steps_total"),
)


class EngineCollector(Collector):
    """Turns `EngineClient.stats()` into metric families, one snapshot per scrape."""

    def __init__(self, engine: EngineClient, model_name: str):
        self._engine = engine
        self._labels = [model_name]

    def collect(self) -> Iterator[Metric]:
        stats = self._engine.stats()
        for name, text, field in _GAUGES:
            gauge = GaugeMetricFamily(f"lullm_{name}", text, labels=["model_name"])
            gauge.add_metric(self._labels, getattr(stats, field))
            yield gauge
        for name, text, field in _COUNTERS:
            counter = CounterMetricFamily(f"lullm_{name}", text, labels=["model_name"])
            counter.add_metric(self._labels, getattr(stats, field))
            yield counter
        preemptions = CounterMetricFamily(
            "lullm_preemptions",
            "Times a request had to give its KV blocks back, by what was done and why.",
            labels=["model_name", "action", "reason"],
        )
        for (action, reason), count in stats.preemptions_total.items():
            preemptions.add_metric([*self._labels, action, reason], count)
        yield preemptions
        finished = CounterMetricFamily(
            "lullm_requests_finished", "Requests that ended, by reason.", labels=["model_name", "finished_reason"]
        )
        for reason, count in stats.finished_total.items():
            finished.add_metric([*self._labels, reason], count)
        yield finished


class Metrics:
    """The registry, and the histograms that are observed at a request's end."""

    def __init__(self, engine: EngineClient):
        model_name = engine.config.served_model_name or engine.config.model
        self.registry = CollectorRegistry()
        self.registry.register(EngineCollector(engine, model_name))
        self._queue_time = self._histogram("request_queue_time", "Arrival to first scheduling.", _SLOW, model_name)
        self._first_token = self._histogram("time_to_first_token", "Arrival to first token.", _SLOW, model_name)
        self._per_token = self._histogram(
            "time_per_output_token", "Mean time between the tokens of a request, after its first.", _FAST, model_name
        )
        self._latency = self._histogram("e2e_request_latency", "Arrival to the request's end.", _SLOW, model_name)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...], model_name: str) -> Histogram:
        histogram = Histogram(
            f"lullm_{name}_seconds", text, labelnames=["model_name"], buckets=buckets, registry=self.registry
        )
        return histogram.labels(model_name)

    def observe(self, output: RequestOutput, num_steps: int) -> None:
        """Take the times of a finished request. `num_steps`: tokens of its longest completion."""
        times = output.metrics
        if times is None:
            return
        if times.time_in_queue is not None:
            self._queue_time.observe(times.time_in_queue)
        if times.first_token_time is not None:
            self._first_token.observe(times.first_token_time - times.arrival_time)
            if times.last_token_time is not None and num_steps > 1:
                self._per_token.observe((times.last_token_time - times.first_token_time) / (num_steps - 1))
        if times.finished_time is not None:
            self._latency.observe(times.finished_time - times.arrival_time)

    def exposition(self) -> bytes:
        """All metrics in Prometheus' text form."""
        return generate_latest(self.registry)
