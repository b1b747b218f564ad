"""From logits to tokens: penalties, restrictions, truncation, draws and log-probabilities.

`sampler` runs the stages in order: a model's rules for `timestamps`, `penalties` (by `token_counts`), `restrictions`
(by `masks` of grammars), `truncation`, and the `race` that chooses a token by noise that depends on the draw alone.
`logprobs` ranks. `draw_share` divides the rows of a batch between the workers that share a model's head.
"""
