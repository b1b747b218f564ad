"""Model families: one short file each over one shared decoder, and the registry that finds them.

`protocol` says what a worker needs of any model, `decoder` is shared, `registry` finds a family's file. `work` says
what a step cannot do without, and `stages` cuts the layers by it.

- `family/`: a file per family. `fallback/`: models of `transformers` over the paged cache.
"""
