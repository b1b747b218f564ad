"""The bundled demo model: its files under `model/`, and the corpus, training and evaluation code it was made with.

Nothing here is imported by the engine, which knows the folder by itself (`lullm.weights.folder`).
"""
