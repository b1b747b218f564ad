"""What a `config.json` of Gemma says."""
