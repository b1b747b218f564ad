"""The bundled demo model: its files (`model/`), and the corpus (`corpus/`), training and evaluation it was made with.

Nothing here is imported by the engine, which knows the folder by itself (`lullm.weights.folder`).

`train` makes it from nothing: `batches` of documents (`tokenization`), a `dense` network in plain torch. `evaluate`
asks it through the engine, `scoring` marks its answers. `plots` are the sentences of its stories.
"""
