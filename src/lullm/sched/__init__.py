"""Scheduling: which tokens of which sequences the next step computes. Pure bookkeeping; nothing here runs a model.

Read in this order: `scheduler` (`plan` and `apply`), `plan_builder` (builds one plan), `intake` (gives results to their
sequences), `lookahead` (plans while a step runs), `preemption` (swap or recompute), `beam` (beam search). `queue`
orders the groups, `roster` has all unfinished ones, `delay` lets prompts gather, `ngram` guesses tokens.
`stats` counts, `monitor` reports to metrics and live pictures. `image/` takes groups to another process.
"""
