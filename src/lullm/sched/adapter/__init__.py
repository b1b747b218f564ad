"""Scheduling with adapters (LoRA): which of them have a place, and which groups wait for one."""
