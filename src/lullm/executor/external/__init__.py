"""An engine in every process that a launcher has started: torchrun, or a trainer. Nobody leads; all do the same."""
