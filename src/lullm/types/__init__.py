"""Plain data that every layer above speaks. No torch, no behaviour.

`sampling_params`, `request` and `outputs` are what callers see; `sequence` is what the scheduler counts on; `step` and
`step_codec` are plans and results, and their bytes (`packed`); `draw` is what a row draws. `layer_kind` and
`arithmetic`: what layers keep and compute. `sleep`: its options, orders and reports. `vllm_argument`: what becomes of
vLLM's others.

- `guided/`, `pooling/`, `reply/`: what a caller asks of an output's form, of vectors, of thoughts and calls.
- `parallel/`: where each of several workers stands.
- `watch/`: what those who watch an engine see: counters, gauges, who holds which blocks.
- `wire/`: what goes to another process by a name or as words: classes, functions, errors.
"""
