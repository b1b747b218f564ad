"""Paged KV memory, as bookkeeping: which physical block holds which tokens of which sequence. No tensors here.

Read in this order: `allocator` (blocks with reference counts), `cache_group` (which layers share block tables),
`block_table` (the blocks of one sequence in one group; `state/`: those of a recurrent state), `duplicate` (equal blocks
become one), `prefix` (what the cache still has for all groups), `growth` (what the next tokens take), `pool_pair`
(device and host, and the moves between them), `block_space` (admission, growth, sharing and release of whole sequence
groups). `snapshot` shows all of it at a glance.
"""
