"""Refuses options before anything is built: those that do not go together or do not exist yet (`options`), those about
guesses of tokens (`speculation`), and those that do not fit the model (`model`). `refusal`: how they do it.
"""
