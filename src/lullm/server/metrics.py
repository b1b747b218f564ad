"""Prometheus metrics of one server, in a registry of its own.

Gauges and counters are read from the engine's stats at the moment of the scrape; the histograms of latencies are fed
with each request's `RequestMetrics` when it ends, the numbers of sleeps by the engine as they happen.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, get_args

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from lullm.engine.client import EngineClient, SleepCause
from lullm.types.pooling.outputs import EngineOutput
from lullm.types.sleep import TAGS, SleepReport, SleepState, WakeReport

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
    ("requests_pooled", "Requests whose prompts were pooled: embedded, scored or classified.", "pooled_total"),
    ("kv_cache_full", "Requests cut because they alone needed more than all KV blocks.", "kv_cache_full_total"),
    ("steps", "Steps the engine ran.", "steps_total"),
)
Values = Mapping[Any, float]
"""Values of a metric's labels besides the model's name, as a tuple -> its value."""


class EngineCollector(Collector):
    """Turns `EngineClient.stats()` and the sleep state into metric families, one snapshot per scrape."""

    def __init__(self, engine: EngineClient, model_name: str):
        self._engine = engine
        self._model_name = model_name

    def collect(self) -> Iterator[Metric]:
        """All families; called by the registry at every scrape."""
        stats, tags, state = self._engine.stats(), self._engine.sleeping_tags, self._engine.sleep_state
        for name, text, field in _GAUGES:
            yield self._gauge(name, text, {(): getattr(stats, field)})
        for name, text, field in _COUNTERS:
            yield self._counter(name, text, {(): getattr(stats, field)})
        yield self._counter(
            "preemptions",
            "Times a request had to give its KV blocks back, by what was done and why.",
            stats.preemptions_total,
            "action",
            "reason",
        )
        finished = {(reason,): num for reason, num in stats.finished_total.items()}
        yield self._counter("requests_finished", "Requests that ended, by reason.", finished, "finished_reason")
        yield self._gauge(
            "engine_is_sleeping", "1 while requests are refused: paused or asleep.", {(): state != "awake"}
        )
        sleeping = {(tag,): tag in tags for tag in TAGS}
        yield self._gauge("engine_sleeping", "1 while the memory of a tag is released.", sleeping, "tag")
        states = {(name,): name == state for name in get_args(SleepState)}
        yield self._gauge("engine_sleep_state", "1 for the state the engine is in.", states, "state")
        yield self._gauge("engine_idle_seconds", "Time since the last request.", {(): self._engine.idle_s})
        step = self._engine.next_sleep
        yield self._gauge(
            "engine_next_sleep_seconds",
            "Time until an idle engine goes to sleep by itself, or deeper; absent while it will not.",
            {} if step is None else {(str(step[0].level), step[0].backup): step[1]},
            "level",
            "backup",
        )

    def _gauge(self, name: str, text: str, values: Values, *labels: str) -> Metric:
        return self._filled(GaugeMetricFamily(f"lullm_{name}", text, labels=["model_name", *labels]), values)

    def _counter(self, name: str, text: str, values: Values, *labels: str) -> Metric:
        return self._filled(CounterMetricFamily(f"lullm_{name}", text, labels=["model_name", *labels]), values)

    def _filled(self, family: GaugeMetricFamily | CounterMetricFamily, values: Values) -> Metric:
        for label_values, value in values.items():
            family.add_metric([self._model_name, *label_values], value)
        return family


@dataclass(slots=True)
class LatencyTotals:
    """Sums over the requests that have ended, for means over any stretch of time. A number per sum: of its addends."""

    num_first_tokens: int = 0
    first_token_s: float = 0.0
    num_ends: int = 0
    e2e_s: float = 0.0


class Metrics:
    """The registry. It observes the ends of requests, sleeps and wake-ups, as a `SleepObserver`."""

    def __init__(self, engine: EngineClient):
        self.latencies = LatencyTotals()
        self._model_name = engine.config.served_model_name
        self.registry = CollectorRegistry()
        self.registry.register(EngineCollector(engine, self._model_name))
        self._queue_time = self._histogram("request_queue_time", "Arrival to first scheduling.", _SLOW)
        self._first_token = self._histogram("time_to_first_token", "Arrival to first token.", _SLOW)
        self._per_token = self._histogram(
            "time_per_output_token", "Mean time between the tokens of a request, after its first.", _FAST
        )
        self._latency = self._histogram("e2e_request_latency", "Arrival to the request's end.", _SLOW)
        self._sleep_seconds = Histogram(
            "lullm_engine_sleep_seconds",
            "Time that releasing memory took.",
            labelnames=["model_name", "level"],
            buckets=_SLOW,
            registry=self.registry,
        )
        self._wake_up_seconds = self._histogram("engine_wake_up", "Time that a wake-up took.", _SLOW)
        self._freed_bytes = self._counter("engine_freed_bytes", "Memory released by sleeps.")
        self._backed_up_bytes = self._counter("engine_backed_up_bytes", "What sleeps saved of it.")
        self._restored_bytes = self._counter("engine_restored_bytes", "What wake-ups put back.")
        self._sleep_failures = self._counter("engine_sleep_failures", "Sleeps that failed.")
        self._wake_up_failures = self._counter("engine_wake_up_failures", "Wake-ups that failed.")
        self._sleeps = self._by_cause("engine_sleeps", "Sleeps: by a call, or for want of requests.", "call", "idle")
        self._wakes = self._by_cause("engine_wakes", "Wake-ups: by a call, or for a request.", "call", "request")
        engine.observe_sleep(self)

    def _by_cause(self, name: str, text: str, *causes: SleepCause) -> dict[SleepCause, Counter]:
        counter = Counter(f"lullm_{name}", text, labelnames=["model_name", "cause"], registry=self.registry)
        return {cause: counter.labels(self._model_name, cause) for cause in causes}

    def _counter(self, name: str, text: str) -> Counter:
        counter = Counter(f"lullm_{name}", text, labelnames=["model_name"], registry=self.registry)
        return counter.labels(self._model_name)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        histogram = Histogram(
            f"lullm_{name}_seconds", text, labelnames=["model_name"], buckets=buckets, registry=self.registry
        )
        return histogram.labels(self._model_name)

    def observe(self, output: EngineOutput, num_steps: int) -> None:
        """Take the times of a finished request. `num_steps`: tokens of its longest completion, 0 of a vector."""
        times = output.metrics
        if times is None:
            return
        if times.time_in_queue is not None:
            self._queue_time.observe(times.time_in_queue)
        if times.first_token_time is not None:
            self._first_token.observe(times.first_token_time - times.arrival_time)
            self.latencies.num_first_tokens += 1
            self.latencies.first_token_s += times.first_token_time - times.arrival_time
            if times.last_token_time is not None and num_steps > 1:
                self._per_token.observe((times.last_token_time - times.first_token_time) / (num_steps - 1))
        if times.finished_time is not None:
            self._latency.observe(times.finished_time - times.arrival_time)
            self.latencies.num_ends += 1
            self.latencies.e2e_s += times.finished_time - times.arrival_time

    def slept(self, report: SleepReport, cause: SleepCause) -> None:
        """Count a sleep in. As the methods below: from the engine's thread."""
        self._sleeps[cause].inc()
        self._sleep_seconds.labels(self._model_name, str(report.level)).observe(report.seconds)
        self._freed_bytes.inc(max(report.freed_bytes, 0))
        self._backed_up_bytes.inc(report.backed_up_bytes)

    def woke(self, report: WakeReport, cause: SleepCause) -> None:
        self._wakes[cause].inc()
        self._wake_up_seconds.observe(report.seconds)
        self._restored_bytes.inc(report.restored_bytes)

    def sleep_failed(self, cause: SleepCause) -> None:
        self._sleep_failures.inc()

    def wake_up_failed(self, cause: SleepCause) -> None:
        self._wake_up_failures.inc()

    def exposition(self) -> bytes:
        """All metrics in Prometheus' text form."""
        return generate_latest(self.registry)
