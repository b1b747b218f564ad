"""An engine's numbers under the names, labels and buckets of vLLM."""
