"""Where work runs: a CPU or a GPU behind one protocol, and how a step is started on it and waited for."""
