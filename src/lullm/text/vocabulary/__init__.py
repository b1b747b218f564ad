"""What files say about a tokenizer, as a backend of the `tokenizers` library.

`folder` finds them, `added` has the tokens beside a vocabulary. A module per form that is no tokenizer.json:
`byte_pairs` (vocab.json and merges.txt), `sentence_piece`, `tekken`, `gguf`.
"""
