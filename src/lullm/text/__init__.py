"""Strings <-> token ids. No torch.

`tokenizer` is the engine's interface, with a `chat_template`. `detokenizer` (by `token_bytes`) and `stop` work on
streams. `verbatim` keeps special tokens that users spell as text, `pair` reads two texts as one prompt, `bad_words`
finds the token sequences of forbidden words.

- `vocabulary/`: a tokenizer's files, in each of their formats.
- `template/`: foreign chat templates within bounds; here if they are surely quick, otherwise in a separate process.
- `reply/`: thoughts and calls of tools out of a text, by forms that are data.
- `guided/`: the form of an output as a grammar, and the next tokens that it allows.
"""
