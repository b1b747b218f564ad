"""Plain data that every layer above uses. No torch, no behaviour.

`sampling_params`, `request` and `outputs` are for callers; `sequence` is the scheduler's; `step` and `step_codec` are
plans and results, and their bytes (`packed`); `draw` is one token to draw. `layer_kind` and `arithmetic`: the memory
and the arithmetic of layers. `sleep`: its options, commands and reports. `vllm_argument`: vLLM's arguments that lullm
lacks.

- `guided/`, `pooling/`, `reply/`: a request's output form, vectors, thoughts and calls.
- `parallel/`: the place of each of several workers.
- `lora/`: the adapter of a request.
- `hibernation/`: its files, reports and forecasts.
- `monitor/`: reports on an engine: counters, gauges, the owners of blocks.
- `vision/`: tiles of pictures.
- `wire/`: classes, functions and errors in a form for other processes.
"""
