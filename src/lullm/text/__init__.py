"""Strings <-> token ids. No torch.

`tokenizer` is what the engine calls, with a `chat_template`. `detokenizer` (by `token_bytes`) and `stop` work on
streams. `verbatim` keeps special tokens that users spell as text, `pair` reads two texts as one prompt, `bad_words`
spells what is forbidden.

- `vocabulary/`: a tokenizer's files, in each of their forms.
- `template/`: foreign chat templates within bounds, here while that is surely quick, else in a process of their own.
- `reply/`: thoughts and calls of tools out of a text, by forms that are data.
- `guided/`: the form of an output as a grammar, and which tokens it allows next.
"""
