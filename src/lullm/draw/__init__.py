"""Pictures without a plotting library, written as PNG.

`canvas` has rectangles and short texts, `block_map` the KV blocks over time, `distribution` cumulative distributions.
"""
