"""Scheduling: which tokens of which sequences the next step computes. Pure bookkeeping; nothing here runs a model."""
