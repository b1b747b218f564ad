"""An engine in every process that a launcher has started: torchrun, or a trainer. All of them do the same."""
