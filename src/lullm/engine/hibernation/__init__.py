"""Hibernation: an engine's conversations in a folder on disk, from which another process goes on.

Read in this order: `calls` (what an engine offers), `hibernation` (writes and reads), `queue` and `text_image`
(requests as plain data; groups and blocks are in `sched/image/` and `kv/image/`), `identity` (what must be equal in
both engines), `folder` (files, atomically).
"""
