"""The bundled demo model: its files (`model/`), and the corpus (`corpus/`), training and evaluation it was made with.

Nothing here is imported by the engine, which knows the folder by itself (`lullm.weights.folder`).
"""
