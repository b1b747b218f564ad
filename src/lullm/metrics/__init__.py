"""An engine's numbers under the names, labels and buckets of vLLM.

`vllm` collects them, `reader` returns them to `LLM.get_metrics` as plain objects.
"""
