"""Guesses of the next tokens: by the text's own repetitions (`ngram`), by those of past answers, too (`suffix`, over
`passages`), or by a smaller model (`draft_model`).

`text` is what the first two share. `guesser` is what planning and results know of them. `adaptive` makes fewer where
they cost more than they give, by measured seconds (`costs`). `opening` makes the one that a config names.
"""
