"""EngineCollector: the engine's stats and sleep state as metric families, read at the moment of a scrape."""

from collections.abc import Iterator, Mapping
from typing import Any, get_args

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from lullm.engine.client import EngineClient
from lullm.types.sleep import TAGS, SleepState

_GAUGES = (
    ("num_requests_running", "Requests in the running batch.", "num_running"),
    ("num_requests_waiting", "Requests that wait to be scheduled.", "num_waiting"),
    ("num_requests_swapped", "Requests whose KV blocks are swapped out.", "num_swapped"),
    ("num_requests_waiting_for_adapter", "Those of them whose LoRA adapter has no place.", "num_waiting_for_adapter"),
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
    ("quiet_steps", "Steps in which nothing was guessed, since it would not have paid.", "quiet_steps_total"),
    ("draft_model_seconds", "Seconds that a draft model took to guess tokens.", "draft_seconds_total"),
    ("adapter_moves", "LoRA adapters put into a place.", "adapter_moves_total"),
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
        yield self._gauge(
            "expert_balance_ratio",
            "Work of the mean worker's experts by that of the busiest worker's, 1 is even; absent without experts.",
            {} if stats.expert_balance is None else {(): stats.expert_balance},
        )
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
