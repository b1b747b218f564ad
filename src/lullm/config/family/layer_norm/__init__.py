"""The `config.json` of families with norms by mean and variance, or without weights."""
