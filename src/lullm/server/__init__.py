"""The HTTP face: an OpenAI-compatible server over an `EngineClient`. Loads no torch.

`app` builds it over an engine, `http_server` listens, `options` are its own. `application` is FastAPI behind the gate,
with a shorter way for requests for text; `context` is shared by routes. `wire` reads bodies; `sse` and `error` write
answers. `route` has the small endpoints, `admin` and `admin_schema` those for sleep; `tracing` reports to
OpenTelemetry.

- `listen/`: ports, a unix socket, TLS.
- `gate/`: access control and bounds.
- `openai/`: schema, validation, one handler (`endpoint`) for every dialect, with a form per endpoint.
- `anthropic/`, `ollama/`, `llama_cpp/`, `openai/responses/`: translate bodies into OpenAI's form, and answers back.
- `lora/`: adapters of the model, under names of their own.
- `pooling/`: embeddings, scores, reranking.
- `audio/`: sounds to text.
- `batch/`: a file of requests, called in process.
- `prefix_cache/`: cached prefixes from one server to the next.
- `metrics/`: the contents of `/metrics`.
- `fleet/`: what a server with several models has more.
- `reference/`: `/openapi.json` and `/docs`.
- `page/`: the web page, and its events.
"""
