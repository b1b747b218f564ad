"""The HTTP face: an OpenAI-compatible server over an `EngineClient`. Loads no torch.

`app` builds it over an engine, `http_server` listens, `options` are its own. `application` is FastAPI behind the gate,
and a shorter way for text; `context` is what routes share. A body comes in by `wire`, an answer leaves by `sse`, or as
`error`. `route` has the small endpoints, `admin` and `admin_schema` those that let servers sleep; `tracing` tells
OpenTelemetry.

- `listen/`: ports, a unix socket, TLS. `gate/`: who may call.
- `openai/`: schema, validation, one handler (`endpoint`) for every dialect, with a form per endpoint.
- `anthropic/`, `ollama/`, `llama_cpp/`, `openai/responses/`: bodies translated into OpenAI's words, and answers back.
- `pooling/`: embeddings, scores, reranking. `batch/`: a file of requests, called in process.
- `metrics/`: what `/metrics` says. `reference/`: `/openapi.json` and `/docs`. `page/`: the page, and its events.
"""
