"""A mixture of experts: the experts of a token, their matrices, and the sum of their results."""
