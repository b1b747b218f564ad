"""The contents of `/metrics`, under lullm's names and under vLLM's."""
