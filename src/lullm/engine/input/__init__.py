"""The one door for requests: from what a caller states (`CallerRequest`) to a `GenerateRequest`, for every face.

- `processor`: the door itself. It checks what all requests have, and hands them to `generation` or `pooling`.
- `prompt`: a prompt of any form becomes tokens and tiles. `text`: its text part. `form`: what a prompt may be.
- `generation`: requests for tokens, with their `guides` (forms and calls) and `seeds`. `pooling`: requests for vectors.
- `limits`: what an engine can take.
"""
