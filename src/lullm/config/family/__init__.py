"""The `config.json` of each architecture: the keys that it reads, ignores or refuses, and their meaning."""
