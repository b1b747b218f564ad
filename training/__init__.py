"""How the bundled demo model was made: its corpus (`corpus/`), training and evaluation. No part of the package.

`train` makes it from nothing: `batches` of documents (`tokenization`), a `dense` network in plain torch. `evaluate`
asks it through the engine, `scoring` marks its answers. Run from the root of the checkout.
"""
