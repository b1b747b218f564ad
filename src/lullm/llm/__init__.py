"""The Python API: `LLM`, under the names people know from vLLM."""
