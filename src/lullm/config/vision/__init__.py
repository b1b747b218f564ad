"""What a model folder says about pictures: the tower, the connector, the pixels.

`vision` is the result, `reading` reads it, by `architecture/`; `tower` reads the tower's config (`tower_kind`), and
`picture` the image processor's, which `setting` (`mm_processor_kwargs`) changes. `internvl_chat`, `phi4mm`: a
config.json in other words.
"""
