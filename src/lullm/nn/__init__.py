"""Layers: parameters (on the meta device until an arena holds them) and the ops that use them. Inference only."""
