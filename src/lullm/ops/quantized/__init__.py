"""Matrices of 8- or 4-bit integers: their format, and the ops over them in torch."""
