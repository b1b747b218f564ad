"""Images of sequence groups as plain data, for another process; and which of them find room there.

`group`: one group; `groups`: all of a scheduler.
"""
