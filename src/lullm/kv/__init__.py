"""Paged KV memory, as bookkeeping: which physical block holds which tokens of which sequence. No tensors here.

Read in this order: `allocator` (blocks with reference counts), `cache_group` (which layers share block tables),
`block_table` (the blocks of one sequence in one group; `state/`: those of a recurrent state), `duplicate` (merges equal
blocks), `prefix` (finds cached blocks of all groups), `pool_pair` (moves blocks between device and host), `growth`
(counts the blocks of the next tokens), `admission` (the blocks of a group that begins or comes back), `block_space`
(the interface of a scheduler). `hashing` names the content of blocks, `layout` computes their size and number;
`snapshot` shows all of it; `image/` takes it to another process. `vision/`: which rows of pictures the workers keep.
"""
