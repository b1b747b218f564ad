"""Traces: a span per prompt, its attributes, its parent, how it ends, and that it reaches a collector."""

import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from lullm.errors import ConfigError
from lullm.server import tracing
from lullm.server.options import ServerOptions
from lullm.types.outputs import RequestMetrics
from lullm.types.pooling.outputs import PoolingOutput, PoolingRequestOutput
from lullm.types.pooling.params import Pooling
from lullm.types.request import NO_TOKENS, GenerateRequest

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.fixture
def exporter(monkeypatch):
    """Keeps the spans of servers that are started in the test."""
    exporter = InMemorySpanExporter()
    monkeypatch.setattr(tracing, "make_exporter", lambda endpoint: exporter)
    return exporter


@pytest.fixture
def ask(start, scripted, exporter):
    """`ask(*calls)`: the spans of a server that has answered the calls, each a function of an HTTP client."""

    def run(*calls, engine=None):
        server = start(engine or scripted(), otlp_traces_endpoint="http://127.0.0.1:9/v1/traces")
        with server.http() as http:
            for call in calls:
                call(http)
        server.stop()  # which sends what is left
        return exporter.get_finished_spans()

    return run


def chat(http, text="hi", **headers):
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": 5, "temperature": 0.25, "top_p": 0.5}
    return http.post("/v1/chat/completions", json=body, headers=headers)


def test_the_span_of_a_chat(ask):
    began = time.time_ns()
    [span] = ask(lambda http: chat(http, **{"X-Request-Id": "mine"}))
    found = dict(span.attributes)
    assert span.name == "llm_request" and span.kind.name == "SERVER" and span.status.status_code is StatusCode.UNSET
    assert span.parent is None and span.resource.attributes["service.name"] == "lullm"
    assert found.pop("gen_ai.request.id").startswith("chatcmpl-mine-")
    num_prompt = found.pop("gen_ai.usage.input_tokens")
    assert num_prompt == found.pop("gen_ai.usage.prompt_tokens") > 5
    latencies = {name: found.pop(name) for name in list(found) if name.startswith("gen_ai.latency.")}
    assert {name.removeprefix("gen_ai.latency.") for name in latencies} == {
        "time_in_queue", "time_to_first_token", "e2e", "time_in_model_prefill", "time_in_model_decode",
        "time_in_model_inference",
    }  # fmt: skip
    assert all(0 <= seconds < 10 for seconds in latencies.values())
    # The engine's part of it, within what was seen from outside; the offset between two clocks may be off by a little.
    assert began - 1e6 <= span.start_time <= span.end_time <= time.time_ns() + 1e6
    assert (span.end_time - span.start_time) / 1e9 >= latencies["gen_ai.latency.e2e"] - 1e-3
    assert found == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "lullm",
        "gen_ai.request.model": "scripted",
        "gen_ai.response.model": "scripted",
        "gen_ai.request.n": 1,
        "gen_ai.request.temperature": 0.25,
        "gen_ai.request.top_p": 0.5,
        "gen_ai.request.max_tokens": 5,
        "gen_ai.usage.output_tokens": 5,
        "gen_ai.usage.completion_tokens": 5,
        "gen_ai.usage.cache_read.input_tokens": 3,
        "gen_ai.usage.num_sequences": 1,
        "gen_ai.response.finish_reasons": ("length",),
    }


@pytest.mark.parametrize(("flags", "num"), [("01", 1), ("00", 0)])
def test_the_clients_trace_goes_on(ask, flags, num):
    spans = ask(lambda http: chat(http, traceparent=f"00-{TRACE}-{PARENT}-{flags}"))
    assert len(spans) == num
    for span in spans:
        assert f"{span.context.trace_id:032x}" == TRACE and f"{span.parent.span_id:016x}" == PARENT


def test_one_request_does_not_inherit_the_trace_of_another(ask):
    first, second, third = ask(
        lambda http: chat(http, traceparent=f"00-{TRACE}-{PARENT}-01"),
        chat,
        lambda http: chat(http, traceparent="nonsense"),
    )
    assert first.parent is not None and second.parent is None and third.parent is None


def test_every_prompt_has_a_span_streamed_or_not(ask):
    def stream(http):
        http.post("/v1/completions", json={"prompt": ["a", "b"], "max_tokens": 3, "n": 2, "stream": True})

    first, second = ask(stream)
    assert {span.attributes["gen_ai.operation.name"] for span in (first, second)} == {"text_completion"}
    assert first.attributes["gen_ai.usage.output_tokens"] == second.attributes["gen_ai.usage.output_tokens"] == 6
    assert first.context.span_id != second.context.span_id


def test_a_request_that_fails_ends_as_an_error(ask, scripted):
    [span] = ask(lambda http: chat(http, "crash"), engine=scripted())
    assert span.status.status_code is StatusCode.ERROR and span.attributes["error.type"] == "EngineDeadError"


def test_a_request_whose_client_goes_ends_as_an_error(ask, scripted):
    engine = scripted()

    def leave(http):
        with http.stream("POST", "/v1/completions", json={"prompt": "hold", "stream": True}) as response:
            next(response.iter_lines())
            engine.wait_held()
        engine.wait_aborted()

    [span] = ask(leave, engine=engine)
    assert span.status.status_code is StatusCode.ERROR and span.attributes["error.type"] == "aborted"


def test_the_span_of_a_vector(exporter):
    traces = tracing.Tracing("http://127.0.0.1:9", "m")
    pooling = Pooling("embed", "last", "none")
    request = GenerateRequest("x", None, [1, 2], NO_TOKENS, 0, time.monotonic(), pooling=pooling)
    output = PoolingRequestOutput("x", PoolingOutput([0.5]), [1, 2], metrics=RequestMetrics(request.arrival_time))
    with traces.spans([request], "embeddings") as spans:
        spans.finish(0, output)
    traces.close()
    [span] = exporter.get_finished_spans()
    assert span.status.status_code is StatusCode.UNSET and "gen_ai.request.temperature" not in span.attributes
    assert span.attributes["gen_ai.usage.input_tokens"] == 2 and span.attributes["gen_ai.usage.output_tokens"] == 0


def test_spans_reach_a_collector(start, scripted):
    received = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self):
            received.append((self.path, self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Collector) as collector:
        thread = threading.Thread(target=collector.serve_forever)
        thread.start()
        server = start(scripted(), otlp_traces_endpoint=f"http://127.0.0.1:{collector.server_port}/v1/traces")
        with server.http() as http:
            chat(http)
        server.stop()
        collector.shutdown()
        thread.join()
    [(path, body)] = received
    [resource] = ExportTraceServiceRequest.FromString(body).resource_spans
    [span] = resource.scope_spans[0].spans
    assert path == "/v1/traces" and span.name == "llm_request"


def test_a_server_without_traces_loads_nothing():
    code = "import lullm.server.app, sys; print('opentelemetry.sdk' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "False\n"


def test_what_is_wrong_is_said_before_a_model_is_loaded(monkeypatch):
    with pytest.raises(ConfigError, match="must be a URL such as"):
        ServerOptions(otlp_traces_endpoint="localhost:4318")
    tracing.check_tracing()
    monkeypatch.setattr(tracing.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'lullm\[otel\]'"):
        tracing.check_tracing()
