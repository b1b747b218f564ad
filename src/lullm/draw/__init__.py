"""Pictures without a plotting library: a canvas that is written as a PNG, and a map of the KV blocks over time."""
