"""The command line: `lullm run`, `lullm chat`, `lullm serve`."""
