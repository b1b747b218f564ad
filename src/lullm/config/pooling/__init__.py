"""What a model's folder says about embeddings, scores and classes, and what the user makes of it."""
