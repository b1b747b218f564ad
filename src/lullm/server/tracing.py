"""Tracing: a span per prompt for OpenTelemetry, sent to a collector over OTLP/HTTP. Needs the extra `lullm[otel]`.

Attributes have the names of OpenTelemetry's GenAI conventions, and those that vLLM adds to them (`gen_ai.latency.*`). A
span's parent is the span that the client names in `traceparent` (W3C Trace Context). No text is in a span.
"""

import contextlib
import importlib.util
import threading
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

import lullm
from lullm.errors import ConfigError
from lullm.types.outputs import RequestMetrics, RequestOutput
from lullm.types.pooling.outputs import EngineOutput
from lullm.types.request import GenerateRequest

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Span

Operation = Literal["chat", "text_completion", "embeddings"]
SPAN_NAME = "llm_request"
FLUSH_S = 3.0
"""Seconds for unsent spans when the server ends; an unreachable collector must not delay it."""
_HEADERS = ("traceparent", "tracestate")


def check_tracing() -> None:
    """Check that traces can be sent. Raises ConfigError otherwise."""
    for name in ("opentelemetry", "opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http"):
        try:
            found = importlib.util.find_spec(name) is not None
        except ModuleNotFoundError:  # a parent of it is missing
            found = False
        if not found:
            raise ConfigError("otlp_traces_endpoint needs OpenTelemetry: pip install 'lullm[otel]'")


def make_exporter(endpoint: str) -> "SpanExporter":
    """The exporter of spans to `endpoint`, such as http://127.0.0.1:4318/v1/traces."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter(endpoint=endpoint, timeout=FLUSH_S)


class Tracing:
    """The tracer of one server. A thread of its own sends spans in batches.

    Args:
        endpoint: the collector's; None: no traces, and OpenTelemetry is not loaded.
        model_name: the model's name in answers.
    """

    def __init__(self, endpoint: str | None, model_name: str):
        self._model_name = model_name
        self._tracer: Any = None
        self._provider: Any = None
        if endpoint is None:
            return
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        resource = Resource.create({"service.name": "lullm", "service.version": lullm.__version__})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(make_exporter(endpoint)))
        self._tracer = self._provider.get_tracer("lullm", lullm.__version__)

    @property
    def is_on(self) -> bool:
        """Whether there are traces."""
        return self._tracer is not None

    @contextlib.contextmanager
    def spans(self, requests: Sequence[GenerateRequest], operation: Operation) -> Iterator["RequestSpans"]:
        """Trace the work on `requests`. A span that `finish` has not ended ends as an error."""
        offset_s = time.time() - time.monotonic()  # of the clock that stamps requests
        traced = requests if self.is_on else ()
        spans = RequestSpans([self._begin(each, operation, offset_s) for each in traced], offset_s)
        try:
            yield spans
        except Exception as error:
            spans.fail(type(error).__name__)
            raise
        finally:
            spans.fail("aborted")

    def _begin(self, request: GenerateRequest, operation: Operation, offset_s: float) -> "Span":
        from opentelemetry.trace import SpanKind

        params = request.params
        asked: dict[str, str | int | float] = {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": "lullm",
            "gen_ai.request.id": request.request_id,
            "gen_ai.request.model": self._model_name,
            "gen_ai.response.model": self._model_name,
        }
        if request.pooling is None:
            asked |= {
                "gen_ai.request.n": params.n,
                "gen_ai.request.temperature": params.temperature,
                "gen_ai.request.top_p": params.top_p,
                **({} if params.max_tokens is None else {"gen_ai.request.max_tokens": params.max_tokens}),
            }
        start_ns = _nanoseconds(request.arrival_time, offset_s)
        span: Span = self._tracer.start_span(SPAN_NAME, kind=SpanKind.SERVER, attributes=asked, start_time=start_ns)
        return span

    def close(self) -> None:
        """Send the unsent spans, for at most FLUSH_S. Blocks."""
        if self._provider is not None:
            # The exporter retries while the collector is unreachable; its thread ends with the process.
            closing = threading.Thread(target=self._provider.shutdown, name="lullm-traces", daemon=True)
            closing.start()
            closing.join(FLUSH_S)


class RequestSpans:
    """The spans of one HTTP request's prompts, by their numbers; no spans: nothing is traced."""

    def __init__(self, spans: "list[Span]", offset_s: float):
        self._open = dict(enumerate(spans))
        self._offset_s = offset_s

    def finish(self, number: int, output: EngineOutput, output_lens: Sequence[int] = ()) -> None:
        """The prompt has its last output. `output_lens`: tokens of its completions."""
        span = self._open.pop(number, None)
        if span is None:
            return
        num_prompt, num_output = len(output.prompt_token_ids), sum(output_lens)
        span.set_attributes(
            {
                "gen_ai.usage.input_tokens": num_prompt,
                "gen_ai.usage.prompt_tokens": num_prompt,
                "gen_ai.usage.output_tokens": num_output,
                "gen_ai.usage.completion_tokens": num_output,
                "gen_ai.usage.cache_read.input_tokens": output.num_cached_tokens,
            }
        )
        if isinstance(output, RequestOutput):
            reasons = [each.finish_reason for each in output.outputs if each.finish_reason is not None]
            span.set_attribute("gen_ai.response.finish_reasons", reasons)
            span.set_attribute("gen_ai.usage.num_sequences", len(output_lens))
        times = output.metrics
        if times is not None:
            span.set_attributes(_latencies(times))
        ended_s = None if times is None else times.finished_time
        span.end(None if ended_s is None else _nanoseconds(ended_s, self._offset_s))

    def fail(self, kind: str) -> None:
        """End the open spans as errors."""
        while self._open:
            from opentelemetry.trace import Status, StatusCode

            _, span = self._open.popitem()
            span.set_attribute("error.type", kind)
            span.set_status(Status(StatusCode.ERROR, kind))
            span.end()


class TraceParent:
    """ASGI middleware: spans of a request continue the trace that its headers name."""

    def __init__(self, app: ASGIApp):
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._app = app
        self._propagator = TraceContextTextMapPropagator()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        from opentelemetry import context

        headers = Headers(scope=scope)
        named = {name: headers[name] for name in _HEADERS if name in headers}
        token = context.attach(self._propagator.extract(named, context.Context()))
        try:
            await self._app(scope, receive, send)
        finally:
            context.detach(token)


def _latencies(times: RequestMetrics) -> dict[str, float]:
    """vLLM's attributes, in seconds; events that did not happen are left out."""
    arrived, scheduled, first, last = (
        times.arrival_time, times.first_scheduled_time, times.first_token_time, times.last_token_time,
    )  # fmt: skip
    pairs = {
        "time_in_queue": (arrived, scheduled),
        "time_to_first_token": (arrived, first),
        "e2e": (arrived, times.finished_time),
        "time_in_model_prefill": (scheduled, first),
        "time_in_model_decode": (first, last),
        "time_in_model_inference": (scheduled, last),
    }
    return {
        f"gen_ai.latency.{name}": end - start
        for name, (start, end) in pairs.items()
        if start is not None and end is not None
    }


def _nanoseconds(monotonic_s: float, offset_s: float) -> int:
    return int((monotonic_s + offset_s) * 1e9)
