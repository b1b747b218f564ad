"""The engine: the one loop and the one owner of state. Requests in, steps, outputs out.

Read in this order: `input/` (the one door for requests), `step_loop` (plans and launches steps, applies their results),
`output` (texts, at the `stream_pace`), `lifecycle` (sleep), `engine_calls` (sleep, new weights, experts), `llm_engine`
(all of it, driven by `step`), `async_llm_engine` (driven by a thread). `client` is the interface that a server uses;
`factory` chooses the kind of engine; `assembly` sizes the KV cache and makes a scheduler over it; `restarts` replaces
lost workers; `interrupt` lets Ctrl-C take effect between steps.

- `start/`: reads a model's folder, and fetches files and memory while torch is imported.
- `lora/`: the adapters of requests.
- `pooling/`: checks requests for vectors, and makes their outputs.
- `vision/`: pictures of requests. `hearing/`: sounds. `encoder/`: sounds and texts beside a decoder's.
- `rows/`: rows in place of tokens: prompts as embeddings, prompt adapters.
- `hibernation/`: its conversations in a folder on disk, from which another process goes on.
- `caller/`: runs on a caller's event loop: `preparation` of requests, their `entry`, streams out, outputs that wait for
  a slow reader.
- `thread/`: the engine's thread: its mailbox, the admission of requests, sleep after idle time.
- `process/`: the engine in a process of its own.
- `replica/`: several engine processes, which start and fail together.
"""
