"""Prometheus metrics of one server, in registries of their own: one for lullm's names, one for vLLM's.

Gauges and counters are read from the engine's stats at the scrape. Histograms of latencies get each request's
`RequestMetrics` when it ends; the engine counts sleeps as they happen.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.exposition import generate_latest

from lullm.engine.client import EngineClient
from lullm.metrics.vllm import VllmMetrics
from lullm.server.metrics.engine_collector import EngineCollector
from lullm.server.options import MetricsPrefix
from lullm.types.pooling.outputs import EngineOutput
from lullm.types.sampling_params import SamplingParams
from lullm.types.sleep import SleepCause, SleepEvent

_FAST = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.5)
_SLOW = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)


@dataclass(slots=True)
class LatencyTotals:
    """Sums over finished requests, for means over any period. A number per sum: of its addends."""

    num_first_tokens: int = 0
    first_token_s: float = 0.0
    num_ends: int = 0
    e2e_s: float = 0.0


class _ByCause(dict[SleepCause, Counter]):
    """The parts of a counter by cause; those that only several models on one server have begin when they occur."""

    def __init__(self, counter: Counter, model_name: str):
        super().__init__()
        self._counter = counter
        self._model_name = model_name

    def __missing__(self, cause: SleepCause) -> Counter:
        self[cause] = part = self._counter.labels(self._model_name, cause)
        return part


class Metrics:
    """The registries. It observes the ends of requests, sleeps and wake-ups.

    `prefix`: the names to expose; all numbers are counted in any case.
    """

    def __init__(self, engine: EngineClient, prefix: MetricsPrefix = "both"):
        self.latencies = LatencyTotals()
        self._model_name = engine.config.served_model_name
        self._prefix = prefix
        self.vllm = VllmMetrics(engine)
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
        engine.observe_sleep(self.observe_sleep)

    def _by_cause(self, name: str, text: str, *causes: SleepCause) -> "_ByCause":
        """A counter that begins with 0 for these causes."""
        counter = Counter(f"lullm_{name}", text, labelnames=["model_name", "cause"], registry=self.registry)
        found = _ByCause(counter, self._model_name)
        for cause in causes:
            _ = found[cause]
        return found

    def _counter(self, name: str, text: str) -> Counter:
        counter = Counter(f"lullm_{name}", text, labelnames=["model_name"], registry=self.registry)
        return counter.labels(self._model_name)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        histogram = Histogram(
            f"lullm_{name}_seconds", text, labelnames=["model_name"], buckets=buckets, registry=self.registry
        )
        return histogram.labels(self._model_name)

    def observe(
        self, output: EngineOutput, output_lens: Sequence[int] = (), params: SamplingParams | None = None
    ) -> None:
        """Count a finished request. `output_lens`: tokens of its completions. `params`: None for a vector."""
        times = output.metrics
        if times is None:
            return
        self.vllm.observe(times, len(output.prompt_token_ids), output_lens, params)
        num_steps = max(output_lens, default=0)
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

    def observe_sleep(self, event: SleepEvent) -> None:
        """Count a sleep or a wake-up. From the engine's thread."""
        if (slept := event.slept) is not None:
            self._sleeps[event.cause].inc()
            self._sleep_seconds.labels(self._model_name, str(slept.level)).observe(slept.seconds)
            self._freed_bytes.inc(max(slept.freed_bytes, 0))
            self._backed_up_bytes.inc(slept.backed_up_bytes)
        elif (woke := event.woke) is not None:
            self._wakes[event.cause].inc()
            self._wake_up_seconds.observe(woke.seconds)
            self._restored_bytes.inc(woke.restored_bytes)
        else:
            (self._sleep_failures if event.failed == "sleep" else self._wake_up_failures).inc()

    def exposition(self) -> bytes:
        """The metrics under the chosen names, in Prometheus' text form."""
        wanted = {"lullm": (self.registry,), "vllm": (self.vllm.registry,)}
        registries = wanted.get(self._prefix, (self.registry, self.vllm.registry))
        return b"".join(map(generate_latest, registries))
