"""The hub: fetching models, and the cache that holds them. Loaded only for a hub id."""
