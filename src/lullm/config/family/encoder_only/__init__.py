"""Families whose tokens see those behind them, too: for embeddings, scores and classes."""
