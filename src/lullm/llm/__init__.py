"""The Python API: `LLM`, under the names people know from vLLM.

`llm` generates, `pooling` gives vectors and scores, `exclusive` has sleep, weights and workers, `hibernation` takes all
of it to another process; `prompt` and `beam_search` read what callers say, `offline` runs a batch to its end, `tally`
counts for the metrics.
"""
