"""A mixture of experts: which experts a token uses, their matrices, and the sum of what they give."""
