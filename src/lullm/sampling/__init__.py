"""From logits to tokens: penalties, restrictions, truncation, draws and log-probabilities.

`sampler` goes through the stages in order: `penalties` (by `token_counts`), `restrictions` (by `masks` of grammars),
`truncation`, and the `race` that chooses, whose noise follows from the draw alone. `logprobs` ranks. `draw_share` deals
the rows of a batch to the workers that share a model's head.
"""
