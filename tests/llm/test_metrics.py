"""`LLM.get_metrics`: the numbers of /metrics as vLLM's objects."""

import pytest

from lullm import LLM, SamplingParams
from lullm.llm import tally
from lullm.metrics.reader import Counter, Gauge, Histogram, Metric, Vector

PROMPTS = [[1, 2, 3], [4, 5, 6, 7]]
PARAMS = SamplingParams(n=2, max_tokens=5, ignore_eos=True, temperature=0.5)


@pytest.fixture
def llm():
    with LLM("demo", max_model_len=256, served_model_name="small", convert="embed") as llm:
        yield llm


def by_name(llm: LLM) -> dict[str, Metric]:
    found = llm.get_metrics()
    assert all(metric.labels["model_name"] == "small" and metric.labels["engine"] == "0" for metric in found)
    return {metric.name: metric for metric in found if "finished_reason" not in metric.labels}


def test_the_kinds(llm):
    llm.generate(PROMPTS, PARAMS, use_tqdm=False)
    found = by_name(llm)
    assert found["vllm:num_requests_running"] == Gauge("vllm:num_requests_running", LABELS, 0.0)
    assert found["vllm:prompt_tokens"] == Counter("vllm:prompt_tokens", LABELS, 7)
    assert found["vllm:generation_tokens"] == Counter("vllm:generation_tokens", LABELS, 20)
    lens = found["vllm:request_prompt_tokens"]
    assert isinstance(lens, Histogram) and (lens.count, lens.sum) == (2, 7.0)
    assert (lens.buckets["2.0"], lens.buckets["5.0"], lens.buckets["+Inf"]) == (0, 2, 2)
    assert found["vllm:request_generation_tokens"].sum == 20 and found["vllm:request_params_n"].sum == 4
    assert found["vllm:e2e_request_latency_seconds"].count == found["vllm:time_to_first_token_seconds"].count == 2
    assert 0 < found["vllm:time_to_first_token_seconds"].sum <= found["vllm:e2e_request_latency_seconds"].sum
    assert found["vllm:inter_token_latency_seconds"].count == 2 * 4
    assert not any(isinstance(metric, Vector) for metric in found.values())


LABELS = {"model_name": "small", "engine": "0"}


def test_they_go_on(llm, monkeypatch):
    """Whether the numbers wait to be read or not, each request counts once."""
    monkeypatch.setattr(tally, "_MOST_KEPT", 3)
    for number in range(1, 6):
        llm.generate(PROMPTS, PARAMS, use_tqdm=False)
        if number % 2:
            assert by_name(llm)["vllm:request_params_n"].count == 2 * number
    llm.embed(["hello"], use_tqdm=False)
    found = by_name(llm)
    assert found["vllm:request_params_n"].count == 10 and found["vllm:e2e_request_latency_seconds"].count == 11
    reasons = {m.labels["finished_reason"]: m.value for m in llm.get_metrics() if m.name == "vllm:request_success"}
    assert reasons["length"] == 10


def test_the_same_names_as_over_http(llm):
    from lullm.metrics.vllm import VllmMetrics

    families = {family.name for family in VllmMetrics(llm.llm_engine).registry.collect()}
    assert {metric.name for metric in llm.get_metrics()} | {"vllm:request_success"} == families
