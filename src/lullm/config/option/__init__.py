"""Options: how they are declared and read, and vLLM's options that lullm lacks."""
