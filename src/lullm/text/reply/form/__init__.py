"""The forms of replies: those that are known by name, and how a model's own is found."""
