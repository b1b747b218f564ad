"""Facts of this machine: its processor, memory and memory nodes. No torch."""
