"""From logits to tokens: penalties, restrictions, truncation, draws and log-probabilities."""
