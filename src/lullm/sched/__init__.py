"""Scheduling: which tokens of which sequences the next step computes. Pure bookkeeping; nothing here runs a model.

Read in this order: `scheduler` (`plan` and `apply`), `plan_builder` (a plan while it is made), `intake` (results go to
their sequences), `lookahead` (plans while a step runs), `preemption` (swap or recompute), `beam` (beam search). `queue`
orders the groups, `roster` knows the live ones, `delay` lets prompts gather. `stats` counts, `watch` is what metrics
and live pictures see of it all.
"""
