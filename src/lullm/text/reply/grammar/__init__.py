"""Grammars of replies whose calls are guided."""
