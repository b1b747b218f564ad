"""The blocks of recurrent states: a `StateTable` per sequence and group, and snapshots for the prefix cache."""
