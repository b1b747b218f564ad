"""Rows that callers give in place of tokens: a prompt's embeddings (`embeds`), or a prompt adapter's (`adapters`).

`values` reads the numbers of both, and cuts them into `GivenRows`.
"""
