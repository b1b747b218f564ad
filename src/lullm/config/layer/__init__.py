"""The parts of layers beside plain ones: recurrent layers, experts, encoders, attention by distance; and the numbers of
`heads`.
"""
