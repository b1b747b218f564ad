"""The engine: the one loop and the one owner of state. Requests in, steps, outputs out.

Read in this order: `input` (the one door for requests), `step_loop` (plans, launches, takes in), `output` (texts, at
the `stream_pace`), `lifecycle` (sleep), `worker_calls` (new weights, experts), `llm_engine` (all of it, driven by
`step`), `async_llm_engine` (driven by a thread). `client` says what a server needs of any of them; `assembly` sizes the
KV cache and makes a scheduler over it; `restarts` replaces lost workers; `interrupt` lets Ctrl-C take effect between
steps.

- `start/`: what a model's folder says, and what can be fetched while torch is imported.
- `pooling/`: what a request for a vector may ask, and its output.
- `caller/`: what stands on a caller's event loop: the way in and back, streams, outputs that wait for a slow reader.
- `thread/`: the engine's thread: what crosses to it, which request enters, when it sleeps by itself.
- `process/`: the engine in a process of its own. `replica/`: several of them, which start and fail together.
"""
