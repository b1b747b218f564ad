"""Where work runs: a CPU or a GPU behind one protocol that starts steps and waits for them."""
