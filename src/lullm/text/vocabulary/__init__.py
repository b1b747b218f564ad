"""A tokenizer's files, read as a backend of the `tokenizers` library.

`folder` finds them, `added` has the tokens beside a vocabulary. Formats other than tokenizer.json have a module each:
`byte_pairs` (vocab.json and merges.txt), `sentence_piece`, `tekken` (and its chat templates) and `tiktoken`, whose
tokens stand in the order of their joining (`ranks`), `gguf` (and of encoders `gguf_pieces`). How texts are cut into
words is in `cut`.
"""
