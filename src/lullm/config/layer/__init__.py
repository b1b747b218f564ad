"""The parts of layers beside plain ones: recurrent layers, experts, encoders (one is a `conformer`), attention by
distance; and the numbers of `heads`.
"""
