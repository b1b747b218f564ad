"""Pictures, from what a caller gives to the tiles that a tower reads. Plain numpy and Pillow, which is optional.

Read in this order: `source` (where the bytes of a picture are), `network` (what may be fetched for it), `picture` (from
bytes, or a library's object, to RGB), `bounds` (what would be too much, told from sizes), `tiling` (to tiles), `pixels`
(a tile's bytes as the numbers of the tower).
"""
