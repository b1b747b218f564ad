"""Model families: one short file each over one shared decoder, and the registry that finds them.

`protocol` says what a worker needs of any model, `work` what a step cannot do without.

- `family/`: a file per family. `fallback/`: models of `transformers` over the paged cache.
"""
