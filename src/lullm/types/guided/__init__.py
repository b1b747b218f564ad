"""The form of an output: a caller's parameters, and the guide that a draw carries (`params`); `rules` of the model's
own files.
"""
