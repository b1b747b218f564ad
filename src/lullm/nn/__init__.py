"""Layers: parameters (on the meta device until an arena holds them) and the ops that use them. Inference only.

`recurrent/`: mixers that keep a state of fixed size.
"""
