"""Executors: they run the workers. One interface: the engine does not know how many workers there are, or where.

`protocol` lists the verbs, `merge` says how the workers' answers become one, `feeding`
how a caller's iterable gives new weights.

- `mp/`: processes of this machine. `ray/`: the nodes of a Ray cluster. `external/`: one in each process of a launcher.
- `remote/`: workers in other processes, over any transport, and the signs of life of a process.
"""
