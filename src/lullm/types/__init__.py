"""Plain data that every layer above speaks: requests, sequences, step plans, outputs. No torch, no behaviour."""
