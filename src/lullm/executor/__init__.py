"""Executors: they run the workers. One interface: the engine does not know how many workers there are, or where.

`executor` has the verbs, over any `workers`; `factory` chooses the executor. `merge` combines the workers' answers,
`feeding` takes new weights from a caller's iterable, `expert_balance` chooses experts to move. `uniproc` is one worker
in this process.

- `mp/`: processes of this machine.
- `ray/`: the nodes of a Ray cluster.
- `external/`: one worker in each process of a launcher.
- `remote/`: workers in other processes over any transport, and heartbeats.
"""
