"""VllmMetrics: metrics under vLLM's names, labels and buckets, where they mean the same here.

Dashboards, alerts and autoscalers that know vLLM's `/metrics` then work. Source: vLLM's docs, "Production Metrics".
Where a request has several completions, vLLM counts each as a request of its own; here it is one.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from lullm.config.resolved import ResolvedConfig
from lullm.types.monitor.stats import EngineStats
from lullm.types.outputs import RequestMetrics
from lullm.types.sampling_params import SamplingParams
from lullm.types.sleep import SleepState

_LABELS = ("model_name", "engine")
_ENGINE = "0"
"""vLLM numbers its engines; there is one."""
_FIRST_TOKEN = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
    *(160.0, 640.0, 2560.0),
)
_PER_TOKEN = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
_REQUEST = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0),
    *(1920.0, 7680.0),
)
_Family = GaugeMetricFamily | CounterMetricFamily
_SLEEP_STATES = ("awake", "weights_offloaded", "discard_all")


class MonitoredEngine(Protocol):
    """An engine as metrics read it, on the thread that scrapes."""

    @property
    def config(self) -> ResolvedConfig:
        """For the model's name and length."""
        ...

    @property
    def sleep_state(self) -> SleepState: ...

    def stats(self) -> EngineStats:
        """A snapshot."""
        ...


def _lengths(longest: int) -> list[int]:
    """1, 2, 5, 10, ... up to `longest`."""
    steps = (digit * 10**power for power in range(len(str(longest))) for digit in (1, 2, 5))
    return [step for step in steps if step <= longest]


class _Gauges(Collector):
    """The numbers that are read from the engine at a scrape."""

    def __init__(self, engine: MonitoredEngine):
        self._engine = engine
        self._values = [engine.config.served_model_name, _ENGINE]

    def collect(self) -> Iterator[Metric]:
        stats, state = self._engine.stats(), self._engine.sleep_state
        # vLLM puts preempted requests back into the queue.
        num_waiting = stats.num_waiting + stats.num_swapped
        for name, text, value in (
            ("num_requests_running", "Requests in the running batch.", stats.num_running),
            ("num_requests_waiting", "Requests that wait, preempted ones included.", num_waiting),
            ("kv_cache_usage_perc", "Share of the KV blocks in use, 0 to 1.", stats.kv_cache_usage),
        ):
            yield self._one(GaugeMetricFamily, name, text, value)
        text = "1 for the state the engine is in."
        states = {name: name == state for name in _SLEEP_STATES}
        yield self._each(GaugeMetricFamily, "engine_sleep_state", text, "sleep_state", states)
        for name, text, value in (
            ("prefix_cache_queries", "Tokens looked up in the prefix cache.", stats.prefix_cache_queries_total),
            ("prefix_cache_hits", "Tokens found in the prefix cache.", stats.prefix_cache_hits_total),
            ("num_preemptions", "Preemptions.", stats.num_preemptions),
            ("prompt_tokens", "Prompt tokens taken in.", stats.prompt_tokens_total),
            ("generation_tokens", "Tokens generated.", stats.generation_tokens_total),
            ("spec_decode_num_drafts", "Times that next tokens were guessed.", stats.drafts_total),
            ("spec_decode_num_draft_tokens", "Guessed tokens.", stats.draft_tokens_total),
            ("spec_decode_num_accepted_tokens", "Guessed tokens that were right.", stats.accepted_tokens_total),
        ):
            yield self._one(CounterMetricFamily, name, text, value)
        if accepted := {str(place): num for place, num in enumerate(stats.accepted_by_position_total)}:
            name = "spec_decode_num_accepted_tokens_per_pos"
            text = "Guessed tokens that were right, by their place from 0; absent before the first guess."
            yield self._each(CounterMetricFamily, name, text, "position", accepted)
        text = "Requests that ended, by reason."
        yield self._each(CounterMetricFamily, "request_success", text, "finished_reason", stats.finished_total)
        yield self._token_gaps(stats)

    def _one(self, kind: type[_Family], name: str, text: str, value: float) -> Metric:
        family = kind(f"vllm:{name}", text, labels=_LABELS)
        family.add_metric(self._values, value)
        return family

    def _each(self, kind: type[_Family], name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
        """A metric with a value for each value of one more label."""
        family = kind(f"vllm:{name}", text, labels=[*_LABELS, label])
        for each, value in values.items():
            family.add_metric([*self._values, each], float(value))
        return family

    def _token_gaps(self, stats: EngineStats) -> Metric:
        gaps, total, buckets = stats.token_gaps, 0, []
        for bound, num in zip([*map(str, gaps.bounds_s), "+Inf"], gaps.counts, strict=True):
            total += num
            buckets.append((bound, float(total)))
        family = HistogramMetricFamily(
            "vllm:inter_token_latency_seconds",
            "Time between the steps that gave a request tokens; streamed or not.",
            labels=_LABELS,
        )
        family.add_metric(self._values, buckets, gaps.sum_s)
        return family


class VllmMetrics:
    """The registry, and the histograms of finished requests."""

    def __init__(self, engine: MonitoredEngine):
        self.registry = CollectorRegistry()
        self.registry.register(_Gauges(engine))
        self._model_name = engine.config.served_model_name
        longest = _lengths(engine.config.max_model_len)
        self._first_token = self._histogram("time_to_first_token_seconds", "Arrival to first token.", _FIRST_TOKEN)
        self._per_token = self._histogram(
            "request_time_per_output_token_seconds", "Mean time per token of a request, after its first.", _PER_TOKEN
        )
        self._latency = self._histogram("e2e_request_latency_seconds", "Arrival to the request's end.", _REQUEST)
        self._queue = self._histogram("request_queue_time_seconds", "Arrival to first scheduling.", _REQUEST)
        self._inference = self._histogram("request_inference_time_seconds", "First scheduling to last token.", _REQUEST)
        self._prefill = self._histogram("request_prefill_time_seconds", "First scheduling to first token.", _REQUEST)
        self._decode = self._histogram("request_decode_time_seconds", "First token to last token.", _REQUEST)
        self._prompt_len = self._histogram("request_prompt_tokens", "Prompt tokens of a request.", longest)
        self._output_len = self._histogram("request_generation_tokens", "Generated tokens of a request.", longest)
        self._n = self._histogram("request_params_n", "The parameter n of a request.", (1, 2, 5, 10, 20))
        self._max_tokens = self._histogram("request_params_max_tokens", "The parameter max_tokens.", longest)

    def _histogram(self, name: str, text: str, buckets: Sequence[float]) -> Histogram:
        histogram = Histogram(f"vllm:{name}", text, labelnames=_LABELS, buckets=buckets, registry=self.registry)
        return histogram.labels(self._model_name, _ENGINE)

    def observe(
        self, times: RequestMetrics, prompt_len: int, output_lens: Sequence[int], params: SamplingParams | None
    ) -> None:
        """Add a finished request. `output_lens`: of its completions. `params`: None for a vector."""
        scheduled, first, last = times.first_scheduled_time, times.first_token_time, times.last_token_time
        if times.time_in_queue is not None:
            self._queue.observe(times.time_in_queue)
        if times.finished_time is not None:
            self._latency.observe(times.finished_time - times.arrival_time)
        self._prompt_len.observe(prompt_len)
        if params is None:
            return
        self._output_len.observe(sum(output_lens))
        self._n.observe(params.n)
        if params.max_tokens is not None:
            self._max_tokens.observe(params.max_tokens)
        if scheduled is None or first is None or last is None:
            return
        self._first_token.observe(first - times.arrival_time)
        self._prefill.observe(first - scheduled)
        self._decode.observe(last - first)
        self._inference.observe(last - scheduled)
        if max(output_lens, default=0) > 1:
            self._per_token.observe((last - first) / (max(output_lens) - 1))
