"""The hub: downloads of models, and their cache. Loaded only for a hub id."""
