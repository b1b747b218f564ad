"""Scheduling: which tokens of which sequences the next step computes. Pure bookkeeping; nothing here runs a model.

Read in this order: `scheduler` (`plan` and `apply`), `plan_builder` (builds one plan), `intake` (gives results to their
sequences), `lookahead` (plans while a step runs), `preemption` (swap or recompute), `beam` (beam search). `queue`
orders the groups, `roster` has all unfinished ones, `delay` lets prompts gather. `stats` counts, `monitor` reports to
metrics and live pictures.

- `guess/`: guesses of the next tokens, for a step that verifies them.
- `adapter/`: groups that wait for the place of an adapter.
- `image/`: groups as plain data, for another process.
"""
