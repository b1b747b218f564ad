"""An engine in every process of a launcher: torchrun, or a trainer. All of them make the same calls."""
