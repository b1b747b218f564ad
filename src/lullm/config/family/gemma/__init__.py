"""The `config.json` of Gemma."""
