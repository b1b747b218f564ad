"""What each architecture says in a `config.json`: the keys that it reads, ignores or refuses, and what they mean."""
