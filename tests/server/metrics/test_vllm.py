"""The metrics under vLLM's names: which there are, their labels, and what they count."""

import pytest
from kit.sched.simulation import Simulation
from prometheus_client.parser import text_string_to_metric_families

from lullm.errors import ConfigError
from lullm.server.metrics.registry import Metrics
from lullm.server.options import ServerOptions
from lullm.types.monitor.stats import GAP_BOUNDS_S
from lullm.types.outputs import RequestMetrics, RequestOutput
from lullm.types.sampling_params import SamplingParams

NAMES = {
    "num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "engine_sleep_state", "prefix_cache_queries",
    "prefix_cache_hits", "num_preemptions", "prompt_tokens", "generation_tokens", "request_success",
    "inter_token_latency_seconds", "time_to_first_token_seconds", "request_time_per_output_token_seconds",
    "e2e_request_latency_seconds", "request_queue_time_seconds", "request_inference_time_seconds",
    "request_prefill_time_seconds", "request_decode_time_seconds", "request_prompt_tokens",
    "request_generation_tokens", "request_params_n", "request_params_max_tokens", "spec_decode_num_drafts",
    "spec_decode_num_draft_tokens", "spec_decode_num_accepted_tokens",
    "spec_decode_num_accepted_tokens_per_pos",
}  # fmt: skip


def families(text: str) -> dict:
    return {family.name: family for family in text_string_to_metric_families(text)}


def values(metrics: Metrics) -> dict:
    """Sample -> value, with the labels that are not always the same."""
    found = {}
    for family in families(metrics.exposition().decode()).values():
        for sample in family.samples:
            labels = {key: value for key, value in sample.labels.items() if key not in ("model_name", "engine", "le")}
            found[sample.name.removeprefix("vllm:"), *labels.values()] = sample.value
    return found


def finished(**times: float) -> RequestOutput:
    return RequestOutput("x", None, [1, 2, 3], [], True, RequestMetrics(100.0, **times))


def test_the_names_and_labels(scripted):
    found = families(Metrics(scripted(), "vllm").exposition().decode())
    assert {name.removeprefix("vllm:") for name in found if not name.endswith("_created")} == NAMES
    for family in found.values():
        for sample in family.samples:
            assert sample.labels["model_name"] == "scripted" and sample.labels["engine"] == "0"
    states = {s.labels["sleep_state"]: s.value for s in found["vllm:engine_sleep_state"].samples}
    assert states == {"awake": 1.0, "weights_offloaded": 0.0, "discard_all": 0.0}


@pytest.mark.parametrize(("prefix", "wanted"), [("both", {"lullm", "vllm"}), ("lullm", {"lullm"}), ("vllm", {"vllm"})])
def test_whose_names_are_exposed(start, scripted, prefix, wanted):
    with start(scripted(), metrics_prefix=prefix).http() as http:
        names = families(http.get("/metrics").text)
    assert {name.partition(":")[0] if ":" in name else name.partition("_")[0] for name in names} == wanted


def test_an_unknown_prefix_is_refused():
    with pytest.raises(ConfigError, match="metrics_prefix"):
        ServerOptions(metrics_prefix="other")


def test_what_the_engine_says(scripted):
    found = values(Metrics(scripted(), "vllm"))
    assert found["num_requests_running",] == 2 and found["num_requests_waiting",] == 1
    assert found["kv_cache_usage_perc",] == 0.25 and found["num_preemptions_total",] == 5
    assert (found["prefix_cache_queries_total",], found["prefix_cache_hits_total",]) == (10, 4)
    assert (found["prompt_tokens_total",], found["generation_tokens_total",]) == (100, 50)
    assert found["request_success_total", "stop"] == 0
    assert [found["spec_decode_num_accepted_tokens_per_pos_total", position] for position in "01"] == [7, 3]


def test_the_times_of_a_request(scripted):
    metrics = Metrics(scripted(), "vllm")
    times = {"first_scheduled_time": 101.0, "first_token_time": 103.0, "last_token_time": 109.0, "finished_time": 110.0}
    metrics.observe(finished(**times), (3, 4), SamplingParams(n=2, max_tokens=7))
    metrics.observe(finished(first_scheduled_time=100.5, finished_time=100.75))
    found = values(metrics)
    assert found["request_queue_time_seconds_sum",] == 1.5 and found["request_queue_time_seconds_count",] == 2
    assert found["e2e_request_latency_seconds_sum",] == 10.75
    assert found["time_to_first_token_seconds_sum",] == 3 and found["time_to_first_token_seconds_count",] == 1
    assert found["request_prefill_time_seconds_sum",] == 2 and found["request_decode_time_seconds_sum",] == 6
    assert found["request_inference_time_seconds_sum",] == 8
    assert found["request_time_per_output_token_seconds_sum",] == 2
    assert found["request_prompt_tokens_sum",] == 6 and found["request_generation_tokens_sum",] == 7
    assert found["request_params_n_sum",] == 2 and found["request_params_max_tokens_sum",] == 7


def test_requests_over_http_are_counted(start, scripted):
    with start(scripted()).http() as http:
        http.post("/v1/completions", json={"prompt": ["a", "bc"], "max_tokens": 4})
        text = http.get("/metrics").text
    counts = {"request_prompt_tokens_sum": 3, "request_generation_tokens_sum": 8, "request_params_n_count": 2}
    for name, value in counts.items():
        assert f'vllm:{name}{{engine="0",model_name="scripted"}} {value}.0' in text


def test_waits_between_tokens():
    sim = Simulation(block_size=4)  # a step takes a second
    sim.add("a", [1] * 5, max_tokens=4)
    sim.add("b", [2] * 5, max_tokens=3, n=2)
    while sim.scheduler.has_unfinished:
        sim.step()
    gaps = sim.scheduler.stats.gaps.snapshot()
    assert gaps.sum_s == 3 + 2 and sum(gaps.counts) == 5, "a request counts once a step, its first token not"
    assert gaps.counts[GAP_BOUNDS_S.index(1.0)] == 5, "a bound holds its own value"
