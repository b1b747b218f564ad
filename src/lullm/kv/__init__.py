"""Paged KV memory, as bookkeeping: which physical block holds which tokens of which sequence. No tensors here.

Read in this order: `allocator` (blocks with reference counts), `cache_group` (which layers share block tables),
`block_table` (the blocks of one sequence in one group; `state/`: those of a recurrent state), `duplicate` (equal blocks
become one), `prefix` (what the cache still has for all groups), `pool_pair` (device and host, and the moves between
them), `growth` (what the next tokens take), `admission` (what a group gets when it begins or comes back), `block_space`
(all that a scheduler asks for). `hashing` names the content of blocks, `layout` says how large and how many they are;
`snapshot` shows all of it at a glance.
"""
