"""What a layer may have in place of a dense MLP or attention over a cache: experts, recurrent states, rows that see
each other.
"""
