"""Model families: one short file each over one shared decoder, and the registry that finds them.

`protocol` is the interface of any model for a worker, `decoder` is shared, `registry` finds a family's file.
`rules`: from a checkpoint's names to parameters, as most families begin. `work` counts the least bytes and operations
of a step, and `stages` divides the layers by them.

- `encoder_only`: models that give hidden states and labels, and no next tokens.
- `vision/`: what reads pictures, beside a decoder. `encoder/`: what reads sounds or texts.
- `family/`: a file per family. `fallback/`: models of `transformers` over the paged cache.
"""
