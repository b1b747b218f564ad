"""Mixers that keep a state of fixed size per sequence, in place of keys and values or beside them."""
