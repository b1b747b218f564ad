"""Images of block tables and pools as plain data, for another process: who holds which block, and what it contains.

`image`: the data; `block_images` takes it and brings it back.
"""
