"""The command line: `lullm run`, `chat`, `memory`, `serve`, `sleep`, `wake`, `ps` and `doctor`."""
