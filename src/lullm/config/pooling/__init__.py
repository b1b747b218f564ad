"""A model folder's settings for embeddings, scores and classes, and the user's changes to them."""
