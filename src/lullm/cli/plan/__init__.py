"""`lullm plan`: what a model takes of a machine's memory and time, before anything is loaded."""
