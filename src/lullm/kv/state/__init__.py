"""The blocks of recurrent states: one `StateTable` per sequence and group, and the states that prefixes go on from."""
