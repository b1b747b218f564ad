"""What reads pictures, beside a decoder: a tower and a connector. `reader` is both, `mosaic` those of
another kind; `rules`: their names.

A `tower` has an `embedding`, layers of `attention` and MLP, and norms. `parts`: of towers and connectors.
"""
