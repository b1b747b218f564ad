"""The command line: `lullm run`, `lullm chat`, `lullm memory`, `lullm serve`."""
