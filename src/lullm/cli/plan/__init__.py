"""`lullm plan`: the memory and time of a model on a machine, without loading it."""
