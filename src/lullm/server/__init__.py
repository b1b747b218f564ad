"""The HTTP face: an OpenAI-compatible server over an `EngineClient`. Loads no torch.

`application` is FastAPI behind the gate, and a shorter way for text; `sse` writes streams; `admin` lets servers sleep.

- `listen/`: ports, a unix socket, TLS. `gate/`: who may call.
- `openai/`: schema, validation, one handler (`endpoint`) for every dialect, with a form per endpoint.
- `anthropic/`, `ollama/`, `llama_cpp/`, `openai/responses/`: bodies translated into OpenAI's words, and answers back.
- `pooling/`: embeddings, scores, reranking. `batch/`: a file of requests, called in process.
- `metrics/`: what `/metrics` says. `reference/`: `/openapi.json` and `/docs`. `page/`: the page, and its events.
"""
