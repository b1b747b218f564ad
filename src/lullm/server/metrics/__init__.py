"""What `/metrics` says, under lullm's names and under vLLM's."""
