"""Pictures and videos, from what a caller gives to the tiles that a tower reads. Numpy and Pillow, which is optional.

Read in this order: `source` (where the bytes of a picture are), `network` (what may be fetched for it), `picture` (from
bytes, or a library's object, to RGB), `bounds` (what would be too much, told from sizes), `tiling` (to tiles), `pixels`
(a tile's bytes as the numbers of the tower). Videos: `film` (frames that can be read, and their time), `container` (of
files, by PyAV), `sampling` (which of them are read), `frame_tiling` (to tiles).
"""
