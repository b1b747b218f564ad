"""The `config.json` of families with recurrent layers."""
